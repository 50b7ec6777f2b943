// FreeBlocks: the free blocks of a pool in allocation order: those without cached tokens first,
// then the least recently used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace nvllm::kvcache {

using BlockId = std::int32_t;
inline constexpr BlockId kNoBlock = -1;

// A list of blocks without duplicates. Not thread-safe; every operation costs O(1).
class FreeBlocks {
 public:
  // Initially all blocks of the pool are free, in ascending order.
  explicit FreeBlocks(std::int64_t blocks) : links_(static_cast<std::size_t>(blocks)) {
    for (BlockId block = 0; block < blocks; ++block) push_back(block);
  }

  void push_front(BlockId block) {
    at(block) = {.before = kNoBlock, .after = first_};
    (first_ == kNoBlock ? last_ : at(first_).before) = block;
    first_ = block;
    ++size_;
  }
  void push_back(BlockId block) {
    at(block) = {.before = last_, .after = kNoBlock};
    (last_ == kNoBlock ? first_ : at(last_).after) = block;
    last_ = block;
    ++size_;
  }
  void remove(BlockId block) {
    const Link link = at(block);
    (link.before == kNoBlock ? first_ : at(link.before).after) = link.after;
    (link.after == kNoBlock ? last_ : at(link.after).before) = link.before;
    at(block) = {};
    --size_;
  }

  std::int64_t size() const { return size_; }
  // kNoBlock: the list is empty.
  BlockId front() const { return first_; }
  BlockId back() const { return last_; }
  BlockId before(BlockId block) const { return links_[static_cast<std::size_t>(block)].before; }
  BlockId after(BlockId block) const { return links_[static_cast<std::size_t>(block)].after; }

 private:
  struct Link {
    BlockId before = kNoBlock, after = kNoBlock;
  };
  Link& at(BlockId block) { return links_[static_cast<std::size_t>(block)]; }

  std::vector<Link> links_;
  BlockId first_ = kNoBlock, last_ = kNoBlock;
  std::int64_t size_ = 0;
};

}  // namespace nvllm::kvcache
