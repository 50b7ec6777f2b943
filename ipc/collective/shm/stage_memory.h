// Which part of the group's shared memory is the stage link's (stage_link.h), and which the
// collectives' (shm_exchange.h).
#pragma once

#include <cstddef>

#include "ipc/group.h"

namespace nvllm::ipc {

// The end of each rank's staging memory, where the group is in several stages.
inline std::size_t link_bytes(const Member& member, int stages) {
  constexpr std::size_t kLine = 64;
  return stages == 1 ? 0 : member.staging(member.rank()).size() / 4 / (2 * kLine) * (2 * kLine);
}

// Flags of a rank (Member::flags); the first three are the collectives'. A rank sends to one other
// and receives from one other, so one counter of each is enough.
inline constexpr std::size_t kSentFlag = 3;   // pieces that it has sent
inline constexpr std::size_t kTakenFlag = 4;  // pieces that it has taken
// Two: bytes of the tensor that the piece in each slot is of.
inline constexpr std::size_t kBytesFlags = 5;

}  // namespace nvllm::ipc
