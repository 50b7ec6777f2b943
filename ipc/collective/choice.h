// Which way a collective takes over peer memory. Decided from a measured table (choice.cc).
#pragma once

#include <cstddef>

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

}  // namespace nvllm::ipc
