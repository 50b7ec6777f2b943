#include "runtime/resident_blocks.h"

#include <algorithm>

#include "base/check.h"

namespace nvllm::runtime {

ResidentBlocks::ResidentBlocks(std::int64_t places, std::int64_t blocks)
    : places_(places), all_(places >= blocks), holders_(static_cast<std::size_t>(blocks)) {}

std::int64_t ResidentBlocks::enter(std::span<const kvcache::BlockId> blocks, std::int64_t most) {
  if (all_) return most;
  const auto there = std::min(static_cast<std::int64_t>(blocks.size()), most);
  std::int64_t kept = 0;
  for (; kept < there; ++kept) {
    std::int32_t& others = holders(blocks[static_cast<std::size_t>(kept)]);
    if (others == 0 && free() == 0) return kept;
    if (others++ == 0) ++held_;
  }
  const std::int64_t later = std::min(most - there, free());
  promised_ += later;
  return kept + later;
}

void ResidentBlocks::add(kvcache::BlockId block) {
  if (all_) return;
  NVLLM_CHECK(promised_ > 0 && holders(block) == 0, "block ", block, " has ", holders(block),
              " holders, and ", promised_, " places are promised");
  --promised_;
  ++held_;
  holders(block) = 1;
}

void ResidentBlocks::leave(std::span<const kvcache::BlockId> blocks, std::int64_t kept) {
  if (all_) return;
  const auto there = std::min(static_cast<std::int64_t>(blocks.size()), kept);
  for (const kvcache::BlockId block : blocks.first(static_cast<std::size_t>(there))) {
    NVLLM_CHECK(holders(block) > 0, "block ", block, " is kept by nobody");
    if (--holders(block) == 0) --held_;
  }
  promised_ -= kept - there;
}

}  // namespace nvllm::runtime
