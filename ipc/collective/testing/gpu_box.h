// A rank of a simulated box (ipc/testing/two_boxes.h) on its GPU. Each rank is a process that sees
// one GPU; NCCL is configured to treat the boxes as machines, so it connects them over a network.
#pragma once

#include <stdlib.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "ipc/group.h"

namespace nvllm::ipc {

// Call before the rank uses CUDA. Ranks of one box have different GPUs if there are enough.
// Otherwise they share them, and NCCL, which refuses that on one machine, is told that each rank is
// a machine.
inline void settle_on_box(const Member& me, const std::vector<std::string>& gpus) {
  const int box = me.group().box();
  const bool shares = static_cast<std::size_t>(me.group().ranks_of(box)) > gpus.size();
  const auto gpu = static_cast<std::size_t>(me.rank()) % gpus.size();
  ::setenv("CUDA_VISIBLE_DEVICES", gpus[gpu].c_str(), 1);
  ::setenv("NCCL_HOSTID", shares ? str("rank", me.rank()).c_str() : str("box", box).c_str(), 1);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
}

}  // namespace nvllm::ipc
