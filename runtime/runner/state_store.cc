#include "runtime/runner/state_store.h"

#include "base/check.h"

namespace nvllm::runtime {

StateStore::StateStore(const model::Decoder& decoder, const model::DecoderMemory& memory,
                       Backend& backend, std::int64_t snapshots, std::int64_t host_states)
    : memory_(memory),
      backend_(backend),
      state_bytes_(model::DecoderMemory::state_bytes(decoder, 1)),
      snapshots_(snapshots),
      snapshot_memory_(backend.allocate(MemoryKind::device,
                                        static_cast<std::size_t>(snapshots) * state_bytes_,
                                        "linear attention snapshots")),
      host_(static_cast<std::size_t>(host_states)) {}

std::byte* StateStore::snapshot(std::int32_t number) const {
  NVLLM_CHECK(number >= 0 && number < snapshots_, "snapshot ", number, " of ", snapshots_);
  return static_cast<std::byte*>(snapshot_memory_.data()) +
         static_cast<std::size_t>(number) * state_bytes_;
}

std::byte* StateStore::host_state(std::int32_t number, Direction direction) {
  NVLLM_CHECK(number >= 0 && static_cast<std::size_t>(number) < host_.size(), "states ", number,
              " of ", host_.size(), " on the host");
  Buffer& buffer = host_[static_cast<std::size_t>(number)];
  if (!buffer && direction == Direction::from_slot) {
    buffer = backend_.allocate(MemoryKind::pinned, state_bytes_, "swapped linear attention states");
  }
  return static_cast<std::byte*>(buffer.data());
}

// place: state_bytes_ of memory; on a rank without heads it is empty, and nothing is copied.
void StateStore::copy(std::int32_t slot, std::byte* place, Direction direction, Stream& stream) {
  memory_.for_each_state_piece(slot, [&](void* piece, std::size_t bytes) {
    if (direction == Direction::from_slot) {
      backend_.copy(place, piece, bytes, stream);
    } else {
      backend_.copy(piece, place, bytes, stream);
    }
    place += Arena::rounded(bytes);
  });
}

void StateStore::load(const StateCopies& copies, Stream& stream) {
  for (const StateCopy& one : copies.swap_out)
    copy(one.from, host_state(one.to, Direction::from_slot), Direction::from_slot, stream);
  for (const StateCopy& one : copies.swap_in)
    copy(one.to, host_state(one.from, Direction::to_slot), Direction::to_slot, stream);
  for (const StateCopy& one : copies.restore)
    copy(one.to, snapshot(one.from), Direction::to_slot, stream);
}

void StateStore::save(const StateCopies& copies, Stream& stream) {
  for (const StateCopy& one : copies.save)
    copy(one.from, snapshot(one.to), Direction::from_slot, stream);
}

}  // namespace nvllm::runtime
