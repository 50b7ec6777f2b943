// DeviceSlots assigns blocks to slots of the device; a slot holds one block. It is pure
// bookkeeping.
//
// A block is held in its slot while its tokens are computed, and as long as sequences keep it
// resident. A block that is no longer held stays in its slot until another block takes the slot,
// and is found there if it is held again before that. Empty slots are assigned first, then the
// least recently released: this keeps recently used blocks longest and gives their copy to the host
// the most time. With as many slots as blocks, no full block loses its slot.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <vector>

#include "kvcache/block_manager.h"

namespace nvllm::kvcache {

using DeviceSlot = std::int32_t;

// Not thread-safe.
class DeviceSlots {
 public:
  DeviceSlots(std::int64_t slots, std::int64_t blocks);

  static constexpr DeviceSlot kNone = -1;

  // The slot of each block that is held, by block; kNone for the others.
  std::span<const DeviceSlot> block_map() const { return block_map_; }
  DeviceSlot slot_of(BlockId block) const { return block_map_[static_cast<std::size_t>(block)]; }
  // Whether the block map has changed since the last call.
  bool take_changed();

  // Holds a block that is not held and whose first token is about to be computed. Holding more
  // blocks than there are slots is a failed check, here and below (see max_write_slots()).
  DeviceSlot open(BlockId block);
  // All tokens of the block have been computed, by work that is enqueued before any that reads
  // them.
  void filled(BlockId block);
  // Holds a full block, or one that is open and will be full. Returns false if its keys and values
  // are not in the slot; the caller then copies them there.
  bool hold(BlockId block);
  // To be called once for each open() or hold().
  void release(BlockId block);

  std::int64_t size() const { return static_cast<std::int64_t>(slots_.size()); }
  std::int64_t free() const { return static_cast<std::int64_t>(free_.size()); }

 private:
  static constexpr BlockId kNoBlock = -1;
  struct Slot {
    // The current block, or the last one; kNoBlock: the slot is empty.
    BlockId block = kNoBlock;
    std::list<DeviceSlot>::iterator at;  // position in free_, if free
  };
  struct Block {
    std::int32_t holders = 0;
    bool whole = false;       // held: all of it is there
    DeviceSlot last = kNone;  // its slot, remembered when it is no longer held
  };

  DeviceSlot assign_slot(BlockId block);
  void settle(BlockId block, DeviceSlot slot);
  Block& of(BlockId block) { return blocks_[static_cast<std::size_t>(block)]; }

  std::vector<Slot> slots_;
  std::vector<Block> blocks_;
  // slots that are not held: empty ones, then least recently released first
  std::list<DeviceSlot> free_;
  std::vector<DeviceSlot> block_map_;
  bool changed_ = true;
};

// The maximum number of blocks that are open or filled at once: those of `sequences` that are not
// full, plus those that a step of `rows` rows can fill.
std::int64_t max_write_slots(std::int64_t sequences, std::int64_t rows, std::int64_t block_size);

}  // namespace nvllm::kvcache
