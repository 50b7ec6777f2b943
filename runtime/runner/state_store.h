// StateStore: one rank's copies of the states that linear attention keeps of sequences: snapshots
// on the device, behind which other sequences begin (kvcache/state_snapshots.h), and in host memory
// those of sequences that are swapped out. It copies as the step messages say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/backend.h"
#include "model/decoder.h"
#include "runtime/scheduler/step.h"

namespace nvllm::runtime {

// Used by the rank's main thread. Everything is enqueued, in the stream's order.
class StateStore {
 public:
  // Takes snapshots * DecoderMemory::state_bytes(decoder, 1) of the device, to the byte. Ledger:
  // "linear attention snapshots" (device), "swapped linear attention states" (pinned). A place on
  // the host gets its memory when it is first copied to. `memory` must outlive it.
  StateStore(const model::Decoder& decoder, const model::DecoderMemory& memory, Backend& backend,
             std::int64_t snapshots, std::int64_t host_states);

  // Before a step's rows: to the host, from there, and from snapshots.
  void load(const StateCopies& copies, Stream& stream);
  // Behind them: to snapshots.
  void save(const StateCopies& copies, Stream& stream);

 private:
  enum class Direction : std::uint8_t { from_slot, to_slot };

  void copy(std::int32_t slot, std::byte* place, Direction direction, Stream& stream);
  std::byte* snapshot(std::int32_t number) const;
  std::byte* host_state(std::int32_t number, Direction direction);

  const model::DecoderMemory& memory_;
  Backend& backend_;
  const std::size_t state_bytes_;
  const std::int64_t snapshots_;
  Buffer snapshot_memory_;
  std::vector<Buffer> host_;  // empty until needed
};

}  // namespace nvllm::runtime
