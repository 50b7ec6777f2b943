#include "runtime/scheduler/block_pools.h"

#include <algorithm>

#include "base/check.h"

namespace nvllm::runtime {

ResidentBlocks::ResidentBlocks(std::int64_t slots, std::int64_t blocks)
    : slots_(slots), all_(slots >= blocks), holders_(static_cast<std::size_t>(blocks)) {}

std::int64_t ResidentBlocks::reserve(std::span<const kvcache::BlockId> blocks,
                                     std::int64_t max_blocks) {
  if (all_) return max_blocks;
  const auto there = std::min(static_cast<std::int64_t>(blocks.size()), max_blocks);
  std::int64_t kept = 0;
  for (; kept < there; ++kept) {
    std::int32_t& others = holders(blocks[static_cast<std::size_t>(kept)]);
    if (others == 0 && free() == 0) return kept;
    if (others++ == 0) ++held_;
  }
  const std::int64_t later = std::min(max_blocks - there, free());
  promised_ += later;
  return kept + later;
}

void ResidentBlocks::add(kvcache::BlockId block) {
  if (all_) return;
  NVLLM_CHECK(promised_ > 0 && holders(block) == 0, "block ", block, " has ", holders(block),
              " holders, and ", promised_, " slots are promised");
  --promised_;
  ++held_;
  holders(block) = 1;
}

void ResidentBlocks::release(std::span<const kvcache::BlockId> blocks, std::int64_t reserved) {
  if (all_) return;
  const auto there = std::min(static_cast<std::int64_t>(blocks.size()), reserved);
  for (const kvcache::BlockId block : blocks.first(static_cast<std::size_t>(there))) {
    NVLLM_CHECK(holders(block) > 0, "block ", block, " is kept by nobody");
    if (--holders(block) == 0) --held_;
  }
  promised_ -= reserved - there;
}

// Reserves memory, so that swapping allocates nothing.
HostBlockPool::HostBlockPool(std::int64_t count) {
  free_.reserve(static_cast<std::size_t>(count));
  freed_.reserve(static_cast<std::size_t>(count));
  for (std::int64_t block = count; block-- > 0;)
    free_.push_back(static_cast<kvcache::BlockId>(block));
}

kvcache::BlockId HostBlockPool::allocate() {
  NVLLM_CHECK(!free_.empty(), "no host block is free");
  const kvcache::BlockId block = free_.back();
  free_.pop_back();
  return block;
}

void HostBlockPool::free(std::vector<kvcache::BlockId>& blocks) {
  freed_.insert(freed_.end(), blocks.begin(), blocks.end());
  blocks.clear();
}

void HostBlockPool::end_message() {
  free_.insert(free_.end(), freed_.begin(), freed_.end());
  freed_.clear();
}

}  // namespace nvllm::runtime
