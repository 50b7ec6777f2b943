// Which implementation serves which collective. Decided from a measured table (choice.cc).
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
  one_shot,  // peer memory, one trip; with rms_norm: the fused kernel
  two_shot,  // peer memory, two trips; with rms_norm: followed by it
  nccl,
};
const char* name_of(Method method);

// For `bytes` of each rank's part: the tensor of all_reduce and broadcast, `out` of reduce_scatter,
// `in` of all_gather and gather. Operations other than all_reduce have only one way over peer
// memory, called one_shot.
Method choose(Collective collective, int ranks, std::size_t bytes);

// The same where there is no NCCL.
Method choose_peer(Collective collective, int ranks, std::size_t bytes);

}  // namespace nvllm::ipc
