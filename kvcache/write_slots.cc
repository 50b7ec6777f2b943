#include "kvcache/write_slots.h"

#include <algorithm>

#include "base/check.h"

namespace nvllm::kvcache {

WriteSlots::WriteSlots(std::int64_t slots, std::int64_t blocks)
    : slots_(slots), homes_(static_cast<std::size_t>(blocks), kNone) {
  for (WriteSlot slot = 0; slot < slots; ++slot) free_.push_back(slot);
}

WriteSlot WriteSlots::take(BlockId block) {
  NVLLM_CHECK(home(block) == kNone, "block ", block, " has a write slot");
  NVLLM_CHECK(!free_.empty(), "all ", slots_, " write slots are taken");
  const WriteSlot slot = free_.front();
  free_.pop_front();
  homes_[static_cast<std::size_t>(block)] = slot;
  return slot;
}

void WriteSlots::release(BlockId block) {
  NVLLM_CHECK(home(block) != kNone, "block ", block, " has no write slot");
  free_.push_back(home(block));
  homes_[static_cast<std::size_t>(block)] = kNone;
}

// A sequence with r rows touches at most 1 + ceil((r - 1) / block_size) blocks, one without rows has one
// open block at most. In all that is one for each, and ceil((r - 1) / block_size) more for those that have
// more than one row: (r - 2) / block_size + 1 at most.
std::int64_t most_write_slots(std::int64_t sequences, std::int64_t rows, std::int64_t block_size) {
  return sequences + std::min(sequences, rows / 2) + rows / block_size;
}

}  // namespace nvllm::kvcache
