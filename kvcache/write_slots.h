// WriteSlots: which blocks lie in which write slots of the device. A block takes a slot when its first token
// is about to be computed and keeps it until it is full, or nobody wants it any more.
//
// Only bookkeeping. Slots are given away again in the order in which they came to be free, so that the copy
// of what was in one has as much time as there can be.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "kvcache/block_manager.h"

namespace nvllm::kvcache {

using WriteSlot = std::int32_t;

// Used by one thread.
class WriteSlots {
 public:
  WriteSlots(std::int64_t slots, std::int64_t blocks);

  static constexpr WriteSlot kNone = -1;

  // Where each block is, by its number.
  std::span<const WriteSlot> homes() const { return homes_; }
  WriteSlot home(BlockId block) const { return homes_[static_cast<std::size_t>(block)]; }

  // A slot for a block that has none. More blocks than there are slots are a failed check: who sized them
  // knows how many a step can need.
  WriteSlot take(BlockId block);
  void release(BlockId block);

  std::int64_t size() const { return slots_; }
  std::int64_t free() const { return static_cast<std::int64_t>(free_.size()); }

 private:
  std::int64_t slots_;
  std::deque<WriteSlot> free_;
  std::vector<WriteSlot> homes_;
};

// How many blocks can be in write slots at once: those of `sequences` that are not full, and what a step of
// `rows` rows can fill besides.
std::int64_t most_write_slots(std::int64_t sequences, std::int64_t rows, std::int64_t block_size);

}  // namespace nvllm::kvcache
