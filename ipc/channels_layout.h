// The rings of a group and where they lie in its segment. ipc/channels.h opens them.
#pragma once

#include <cstddef>

#include "ipc/ring_layout.h"

namespace nvllm::ipc {

// A step message is a few KiB and fits a slot; a prefill's token lists span some.
inline constexpr RingShape kCallsShape{32, 16384};
inline constexpr RingShape kRepliesShape{16, 8192};
inline constexpr RingShape kRequestsShape{16, 16384};
inline constexpr RingShape kResultsShape{64, 4096};

struct ChannelsLayout {
  std::size_t calls = 0;     // rank 0 to all others
  std::size_t requests = 0;  // launcher to rank 0
  std::size_t results = 0;   // rank 0 to launcher
  std::size_t replies = 0;   // rank 1 to rank 0; then those of ranks 2, 3, ...
  std::size_t reply_stride = 0;
  std::size_t bytes = 0;  // of all together

  explicit constexpr ChannelsLayout(int size) {
    requests = calls + RingMemory::bytes_needed(kCallsShape);
    results = requests + RingMemory::bytes_needed(kRequestsShape);
    replies = results + RingMemory::bytes_needed(kResultsShape);
    reply_stride = RingMemory::bytes_needed(kRepliesShape);
    bytes = replies + static_cast<std::size_t>(size - 1) * reply_stride;
  }
};

}  // namespace nvllm::ipc
