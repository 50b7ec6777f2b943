// The layout of a rank's flags and staging memory, as used by collectives and the stage link
// (ipc/collective/shm), and by the mirror, which copies it to other boxes (mirror.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ipc/group.h"

namespace nvllm::ipc {

// Indices of a rank's flags (Member::flags).
inline constexpr std::size_t kStepFlag = 0;  // of collectives: 32 bits of the call's hash, then the
                                             // step
// Two flags, by step % 2: 32 bits of the offset of the step's data in the staging memory, then its
// size in bytes. Used if the collective's ranks are on several boxes.
inline constexpr std::size_t kStretchFlags = 1;
// Flags of the stage link. A rank sends to one other and receives from one other, so one counter of
// each is enough.
inline constexpr std::size_t kSentFlag = 3;   // number of pieces sent
inline constexpr std::size_t kTakenFlag = 4;  // number of pieces received
// Two flags, by slot: the bytes of the tensor from the slot's piece on.
inline constexpr std::size_t kBytesFlags = 5;

// The stage link's part at the end of each rank's staging memory, if the group has several stages:
// two slots, which pieces use alternately.
inline constexpr std::size_t kStageSlots = 2;
inline std::size_t link_bytes(const Member& member, int stages) {
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kUnit = kStageSlots * kLine;
  return stages == 1 ? 0 : member.staging(0).size() / 4 / kUnit * kUnit;
}
inline std::span<std::byte> stage_slot(const Member& member, int stages, int rank,
                                       std::uint64_t piece) {
  const std::size_t bytes = link_bytes(member, stages), slot = bytes / kStageSlots;
  return member.staging(rank).last(bytes).subspan(piece % kStageSlots * slot, slot);
}

// Ranks of a pipeline: rank = stage * ranks per stage + number within the stage. Each rank sends to
// the rank with the same number in the next stage; the first one of the last stage sends to rank 0,
// and the others of that stage to nobody.
struct StageMap {
  static constexpr int kNobody = -1;
  int ranks = 1;   // in all stages
  int stages = 1;  // divides `ranks`

  int of_stage() const { return ranks / stages; }
  int first_of_stage(int rank) const { return rank / of_stage() * of_stage(); }
  int last_stage() const { return ranks - of_stage(); }  // its first rank
  // The same rank in the next stage, and in the previous one.
  int next_of(int rank) const { return rank < last_stage() ? rank + of_stage() : kNobody; }
  int previous_of(int rank) const { return rank >= of_stage() ? rank - of_stage() : kNobody; }
  int receiver_of(int rank) const { return stages > 1 && rank == last_stage() ? 0 : next_of(rank); }
  int sender_to(int rank) const {
    return stages > 1 && rank == 0 ? last_stage() : previous_of(rank);
  }
};

}  // namespace nvllm::ipc
