// DeviceSlots: which blocks lie in which slots of the device; a slot has room for one block. It is
// bookkeeping only.
//
// A block is held in its slot while its tokens are computed, and as long as sequences keep it
// resident. A block that nobody holds any more stays in its slot until another block takes the
// slot, and is found there if somebody holds it again before that. Empty slots are taken first, the
// others in the order in which they were released: what was used last stays longest, and its copy
// to the host has as much time as possible. With as many slots as blocks, no full block loses its
// slot.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <vector>

#include "kvcache/block_manager.h"

namespace nvllm::kvcache {

using DeviceSlot = std::int32_t;

// Used by one thread.
class DeviceSlots {
 public:
  DeviceSlots(std::int64_t slots, std::int64_t blocks);

  static constexpr DeviceSlot kNone = -1;

  // The slot of each block that is held, by block; kNone for the others.
  std::span<const DeviceSlot> block_map() const { return block_map_; }
  DeviceSlot slot_of(BlockId block) const { return block_map_[static_cast<std::size_t>(block)]; }
  // Whether the block map has changed since the last call.
  bool take_changed();

  // Holds a block whose first token is about to be computed, and which nobody holds. To hold more
  // blocks than there are slots is a failed check, here and below (see max_write_slots()).
  DeviceSlot open(BlockId block);
  // All of its tokens have been computed, by work that is enqueued before any that reads them.
  void filled(BlockId block);
  // Holds a full block, or one that is open and will be full. Returns false if its keys and values
  // are not in the slot; the caller then copies them there.
  bool hold(BlockId block);
  // Once for each open() or hold().
  void release(BlockId block);

  std::int64_t size() const { return static_cast<std::int64_t>(slots_.size()); }
  std::int64_t free() const { return static_cast<std::int64_t>(free_.size()); }

 private:
  static constexpr BlockId kNoBlock = -1;
  struct Slot {
    // The block that is there, or was there last; kNoBlock: the slot is empty.
    BlockId block = kNoBlock;
    std::list<DeviceSlot>::iterator at;  // in free_, if it is
  };
  struct Block {
    std::int32_t holders = 0;
    bool whole = false;       // held: all of it is there
    DeviceSlot last = kNone;  // where it still is; kept when nobody holds it
  };

  DeviceSlot assign_slot(BlockId block);
  void settle(BlockId block, DeviceSlot slot);
  Block& of(BlockId block) { return blocks_[static_cast<std::size_t>(block)]; }

  std::vector<Slot> slots_;
  std::vector<Block> blocks_;
  std::list<DeviceSlot> free_;  // that nobody holds: empty ones, then the longest free first
  std::vector<DeviceSlot> block_map_;
  bool changed_ = true;
};

// How many blocks can be open or filled at once: those of `sequences` that are not full, and what a
// step of `rows` rows can fill besides.
std::int64_t max_write_slots(std::int64_t sequences, std::int64_t rows, std::int64_t block_size);

}  // namespace nvllm::kvcache
