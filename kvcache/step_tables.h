// StepTables: what the device is told of a ChunkedCache's step, in its memory: where blocks are, and which of them each
// sequence finds in the device's slots. Written by the host before every step, in one copy or two, so that
// a graph that reads it serves for many steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "device/backend.h"
#include "device/tensor_view.h"
#include "kvcache/device_slots.h"
#include "kvcache/step_reads.h"

namespace nvllm::kvcache {

// Used by one thread, with one stream.
class StepTables {
 public:
  struct Limits {
    std::int64_t blocks = 0, block_size = 0;
    std::int64_t slots = 0;                         // of the device
    std::int64_t ring_slots = 0, ring_at_once = 0;  // LoadRing's
    std::int64_t sequences = 0;                     // of a step
    int steps_ahead = 0;                            // steps that may be enqueued at once
    bool addresses = false;                         // of blocks in the host's memory, too
  };

  // Ledger: "step input" (device, pinned), "quest" (device): addresses.
  StepTables(Backend& backend, const Limits& limits);
  static std::size_t bytes(const Limits& limits);  // device memory

  // Where a block lies in host memory. Told with the block_map, when one of these has changed.
  void set_address(BlockId block, const void* address);
  void stage(const StepReads& reads, DeviceSlots& slots, Stream& stream);

  TensorView block_map() const;      // [blocks], int32: slots, or -1
  TensorView addresses() const;  // [blocks], int64
  TensorView whole(
      std::int64_t blocks) const;  // [1], int32: the tokens of so many blocks, up to ring_at_once
  // [1, blocks], int32: as many slots of the ring, one behind the other from this one on.
  TensorView ring(std::int64_t slot, std::int64_t blocks) const;
  // Of the step's sequences, int32: {0, rows} of one; the tokens of each in slots; and these slots.
  TensorView rows(std::size_t sequence) const;                          // [2]
  TensorView lengths(std::int64_t sequences) const;                     // [sequences]
  TensorView table(std::int64_t sequences, std::int64_t blocks) const;  // [sequences, blocks]

 private:
  // Words of 32 bits, one kind of them behind the other.
  struct Places {
    explicit Places(const Limits& limits);
    std::int64_t whole, ring, lengths, rows, table, end;
  };
  struct Staged {
    Buffer memory;  // pinned
    std::unique_ptr<Event> copied;
    Buffer addresses;  // pinned
  };

  TensorView ints(std::int64_t first, std::initializer_list<std::int64_t> shape) const;
  void write(const StepReads& reads, std::int32_t* words) const;

  Backend& backend_;
  const Limits limits_;
  const Places at_;
  Buffer memory_, address_memory_;
  std::vector<std::int64_t> addresses_;
  std::vector<Staged> staged_;
  std::size_t next_ = 0;
};

}  // namespace nvllm::kvcache
