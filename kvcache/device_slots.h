// DeviceSlots: which blocks lie in which of the device's slots, each of which has room for a whole block. A block is
// held there while its tokens are computed, and for as long as sequences want it to stay. What nobody holds any more
// remains until its slot is given to another block, and is found there if somebody holds it again before that.
//
// Only bookkeeping. Slots with nothing in them are given away first, the others in the order in which they came to be
// free: so what was used last remains longest, and the copy of what was in one has as much time as there can be. With
// as many slots as blocks no block that is full ever loses its slot.
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

  // Where each block is that is held, by its number.
  std::span<const DeviceSlot> block_map() const { return homes_; }
  DeviceSlot home(BlockId block) const { return homes_[static_cast<std::size_t>(block)]; }
  // Whether a home is another one than at the last call.
  bool take_changes();

  // Holds a block whose first token is about to be computed, and which nobody holds. More blocks than there are
  // slots are a failed check, here and below: who sized them knows how many can be held.
  DeviceSlot open(BlockId block);
  // All its tokens are there now, or will be before anything that comes later.
  void filled(BlockId block);
  // Holds a full block, or one that is open and will be full. False: its keys and values are not there, but will be,
  // as the caller copies them.
  bool hold(BlockId block);
  // Once for each open() or hold().
  void release(BlockId block);

  std::int64_t size() const { return static_cast<std::int64_t>(slots_.size()); }
  std::int64_t free() const { return static_cast<std::int64_t>(free_.size()); }

 private:
  static constexpr BlockId kNoBlock = -1;
  struct Slot {
    // That is there, or was there last; kNoBlock: nothing that anybody could want.
    BlockId block = kNoBlock;
    std::list<DeviceSlot>::iterator at;  // in free_, if it is
  };
  struct Block {
    std::int32_t holders = 0;
    bool whole = false;       // held: all of it is there
    DeviceSlot last = kNone;  // where it still is; kept when nobody holds it
  };

  DeviceSlot take(BlockId block);
  void settle(BlockId block, DeviceSlot slot);
  Block& of(BlockId block) { return blocks_[static_cast<std::size_t>(block)]; }

  std::vector<Slot> slots_;
  std::vector<Block> blocks_;
  std::list<DeviceSlot> free_;  // that nobody holds: empty ones, then the longest free first
  std::vector<DeviceSlot> homes_;
  bool changed_ = true;
};

// How many blocks can be open or filled at once: those of `sequences` that are not full, and what a step of
// `rows` rows can fill besides.
std::int64_t most_write_slots(std::int64_t sequences, std::int64_t rows, std::int64_t block_size);

}  // namespace nvllm::kvcache
