#include "kvcache/chunked/device_slots.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace nvllm::kvcache {

DeviceSlots::DeviceSlots(std::int64_t slots, std::int64_t blocks)
    : slots_(static_cast<std::size_t>(slots)),
      blocks_(static_cast<std::size_t>(blocks)),
      block_map_(static_cast<std::size_t>(blocks), kNone) {
  for (DeviceSlot slot = 0; slot < slots; ++slot) {
    slots_[static_cast<std::size_t>(slot)].at = free_.insert(free_.end(), slot);
  }
}

bool DeviceSlots::take_changed() {
  return std::exchange(changed_, false);
}

// Returns an empty slot, or the least recently released one, whose block is then no longer on the
// device.
DeviceSlot DeviceSlots::assign_slot(BlockId block) {
  NVLLM_CHECK(!free_.empty(), "all ", size(), " slots of the device are held");
  const DeviceSlot slot = free_.front();
  Slot& there = slots_[static_cast<std::size_t>(slot)];
  if (there.block != kNoBlock) of(there.block).last = kNone;
  there.block = block;
  settle(block, slot);
  return slot;
}

// Holds the block in a slot that has been free so far.
void DeviceSlots::settle(BlockId block, DeviceSlot slot) {
  free_.erase(slots_[static_cast<std::size_t>(slot)].at);
  of(block).last = slot;
  block_map_[static_cast<std::size_t>(block)] = slot;
  changed_ = true;
}

DeviceSlot DeviceSlots::open(BlockId block) {
  Block& own = of(block);
  NVLLM_CHECK(own.holders == 0, "block ", block, " is held, and cannot be opened");
  if (own.last != kNone) {  // it had other tokens
    Slot& there = slots_[static_cast<std::size_t>(own.last)];
    there.block = kNoBlock;
    free_.splice(free_.begin(), free_, there.at);
    own.last = kNone;
  }
  own.holders = 1;
  own.whole = false;
  return assign_slot(block);
}

void DeviceSlots::filled(BlockId block) {
  NVLLM_CHECK(of(block).holders > 0, "block ", block, " is filled, but nobody holds it");
  of(block).whole = true;
}

bool DeviceSlots::hold(BlockId block) {
  Block& own = of(block);
  if (own.holders++ > 0) return true;
  own.whole = true;
  if (own.last != kNone) {
    settle(block, own.last);
    return true;
  }
  assign_slot(block);
  return false;
}

void DeviceSlots::release(BlockId block) {
  Block& own = of(block);
  NVLLM_CHECK(own.holders > 0, "block ", block, " is released, but nobody holds it");
  if (--own.holders > 0) return;
  Slot& there = slots_[static_cast<std::size_t>(own.last)];
  there.at = free_.insert(own.whole ? free_.end() : free_.begin(), own.last);
  if (!own.whole) {
    there.block = kNoBlock;
    own.last = kNone;
  }
  block_map_[static_cast<std::size_t>(block)] = kNone;
  changed_ = true;
}

// A sequence with r rows touches at most 1 + ceil((r - 1) / block_size) blocks, one without rows
// has at most one open block. In total that is one per sequence, plus ceil((r - 1) / block_size)
// for those with more than one row: at most (r - 2) / block_size + 1.
std::int64_t max_write_slots(std::int64_t sequences, std::int64_t rows, std::int64_t block_size) {
  return sequences + std::min(sequences, rows / 2) + rows / block_size;
}

}  // namespace nvllm::kvcache
