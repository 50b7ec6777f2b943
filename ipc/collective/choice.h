// Which way a collective takes over peer memory. Decided from a measured table (choice.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace nvllm::ipc {

enum class Collective {
  all_reduce,
  all_reduce_rms_norm,
  reduce_scatter,
  all_gather,
  gather,
  broadcast,
};
const char* name_of(Collective collective);

enum class Method {
  one_shot,  // one trip
  two_shot,  // two trips: of all_reduce, with rms_norm and without
};
const char* name_of(Method method);

// For `bytes` of each rank's part. Operations other than all_reduce have only one way: one_shot.
Method choose(Collective collective, int ranks, std::size_t bytes);

// What a GPU has for it.
struct Abilities {
  std::int32_t multiprocessors = 0;
  std::uint32_t hopper = 0;  // 1: runs code for compute capability 9.0

  bool operator==(const Abilities&) const = default;
};
// What every rank has. Ranks must take the same way, so they choose by this and not by what each has itself.
Abilities common_to(std::span<const Abilities> ranks);

}  // namespace nvllm::ipc
