// StateStore: one rank's copies of the states of linear attention: snapshots on the device, from
// which other sequences resume (kvcache/state_snapshots.h), and states of swapped-out sequences in
// host memory. The step messages determine what is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/backend.h"
#include "model/decoder.h"
#include "runtime/scheduler/step.h"

namespace nvllm::runtime {

// Used by the rank's main thread. All copies are enqueued, in the stream's order.
class StateStore {
 public:
  // Takes exactly snapshots * DecoderMemory::state_bytes(decoder, 1) of device memory. Ledger:
  // "linear attention snapshots" (device), "swapped linear attention states" (pinned). A host place
  // is allocated when it is first copied to. `memory` must outlive it.
  StateStore(const model::Decoder& decoder, const model::DecoderMemory& memory, Backend& backend,
             std::int64_t snapshots, std::int64_t host_states);

  // Copies before a step's rows: to the host, from the host, and from snapshots.
  void load(const StateCopies& copies, Stream& stream);
  // Copies after a step's rows: to snapshots.
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
  std::vector<Buffer> host_;  // allocated at first use
};

}  // namespace nvllm::runtime
