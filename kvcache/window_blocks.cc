#include "kvcache/window_blocks.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace nvllm::kvcache {

WindowBlocks::WindowBlocks(const WindowBlocksOptions& options)
    : options_(options), blocks_(static_cast<std::size_t>(options.blocks)), free_(options.blocks) {
  NVLLM_CHECK(options.blocks > 0 && options.block_size > 0 && options.window > 0, options.blocks,
              " blocks of ", options.block_size, " tokens, window ", options.window);
}

std::int64_t WindowBlocks::first_needed(std::int64_t position) const {
  return std::max<std::int64_t>(position + 1 - options_.window, 0) / options_.block_size;
}

std::int64_t WindowBlocks::promise(std::int64_t max_length) const {
  return std::min(window_blocks(options_.window, options_.block_size),
                  divide_up(max_length, options_.block_size));
}

std::int64_t WindowBlocks::more_than_promised(std::int64_t max_length) const {
  return std::min(divide_up(options_.chunk_rows, options_.block_size),
                  divide_up(max_length, options_.block_size) - promise(max_length));
}

// --- Blocks ---

BlockId WindowBlocks::take_free_block() {
  const BlockId block = free_.front();
  NVLLM_CHECK(block != kNoBlock, "none of ", options_.blocks, " blocks is free");
  free_.remove(block);
  if (at(block).content != BlockManager::kNoContent) unpublish(block);
  at(block).references = 1;
  return block;
}

// Content that another block in use has is not indexed twice. A free block with the same content
// loses it: the new one was used more recently.
void WindowBlocks::publish(BlockId block, Content content) {
  if (block == kNoBlock || content == BlockManager::kNoContent) return;
  NVLLM_CHECK_EQ(at(block).content, BlockManager::kNoContent);
  if (const auto found = by_content_.find(content); found != by_content_.end()) {
    const BlockId other = found->second;
    if (at(other).references > 0) return;
    unpublish(other);
    free_.remove(other);
    free_.push_front(other);
  }
  at(block).content = content;
  by_content_.emplace(content, block);
}

void WindowBlocks::unpublish(BlockId block) {
  by_content_.erase(std::exchange(at(block).content, BlockManager::kNoContent));
}

void WindowBlocks::release(BlockId block) {
  if (--at(block).references > 0) return;
  if (at(block).content == BlockManager::kNoContent) return free_.push_front(block);
  free_.push_back(block);
}

// --- Sequences ---

WindowBlocks::Sequence& WindowBlocks::find_sequence(SequenceId id) {
  return const_cast<Sequence&>(std::as_const(*this).find_sequence(id));
}

const WindowBlocks::Sequence& WindowBlocks::find_sequence(SequenceId id) const {
  const auto found = sequences_.find(id);
  NVLLM_CHECK(found != sequences_.end(), "there is no sequence ", id);
  return found->second;
}

std::int64_t WindowBlocks::find_prefix(std::span<const Content> contents) const {
  std::int64_t found = 0, run = 0;  // run: blocks without a gap, up to the one at hand
  for (std::int64_t count = 1; count <= std::ssize(contents); ++count) {
    run = by_content_.contains(contents[static_cast<std::size_t>(count - 1)]) ? run + 1 : 0;
    if (run >= count - first_needed(count * options_.block_size)) found = count;
  }
  return found * options_.block_size;
}

bool WindowBlocks::has_room_for(std::int64_t max_length) const {
  if (sequences_.empty()) return promise(max_length) <= options_.blocks;
  const std::int64_t chunk =
      std::min({divide_up(options_.chunk_rows, options_.block_size), options_.blocks / 4,
                more_ + more_than_promised(max_length)});
  return promised_ + promise(max_length) + chunk <= options_.blocks &&
         taken_ + promise(max_length) <= options_.blocks;
}

WindowBlocks::Sequence& WindowBlocks::insert(SequenceId id, std::int64_t max_length,
                                             std::int64_t blocks_before) {
  const auto [entry, is_new] = sequences_.try_emplace(id);
  NVLLM_CHECK(is_new, "sequence ", id, " exists already");
  Sequence& sequence = entry->second;
  sequence.blocks.assign(static_cast<std::size_t>(blocks_before), kNoBlock);
  sequence.released = sequence.next_cached = blocks_before;
  sequence.promised = promise(max_length);
  sequence.more = more_than_promised(max_length);
  promised_ += sequence.promised;
  more_ += sequence.more;
  taken_ += sequence.taken();
  NVLLM_CHECK_LE(taken_, options_.blocks);
  return sequence;
}

template <typename Change>
void WindowBlocks::count_change(Sequence& sequence, const Change& change) {
  taken_ -= sequence.taken();
  change();
  taken_ += sequence.taken();
}

void WindowBlocks::add_sequence(SequenceId id, std::int64_t max_length,
                                std::span<const Content> prefix) {
  const std::int64_t first = first_needed(std::ssize(prefix) * options_.block_size);
  Sequence& sequence = insert(id, max_length, first);
  count_change(sequence, [&] {
    for (const Content content : prefix.subspan(static_cast<std::size_t>(first))) {
      const auto found = by_content_.find(content);
      NVLLM_CHECK(found != by_content_.end(), "sequence ", id, ": content ", content);
      if (at(found->second).references++ == 0) free_.remove(found->second);
      sequence.blocks.push_back(found->second);
    }
  });
  sequence.next_cached = std::ssize(prefix);
  NVLLM_CHECK_LE(taken_, options_.blocks);
}

void WindowBlocks::add_computed_sequence(SequenceId id, std::int64_t max_length,
                                         std::int64_t computed) {
  insert(id, max_length, first_needed(computed));
  allocate(id, computed);
}

std::int64_t WindowBlocks::max_tokens(SequenceId id) const {
  const Sequence& sequence = find_sequence(id);
  const std::int64_t may_have = options_.blocks - (taken_ - sequence.taken());
  return (sequence.released + may_have) * options_.block_size;
}

void WindowBlocks::allocate(SequenceId id, std::int64_t tokens) {
  Sequence& sequence = find_sequence(id);
  NVLLM_CHECK_LE(tokens, max_tokens(id));
  count_change(sequence, [&] {
    while (std::ssize(sequence.blocks) < divide_up(tokens, options_.block_size))
      sequence.blocks.push_back(take_free_block());
  });
}

void WindowBlocks::release_unseen(SequenceId id, std::int64_t position) {
  Sequence& sequence = find_sequence(id);
  const std::int64_t end = std::min(first_needed(position), std::ssize(sequence.blocks));
  count_change(sequence, [&] {
    for (; sequence.released < end; ++sequence.released)
      release(
          std::exchange(sequence.blocks[static_cast<std::size_t>(sequence.released)], kNoBlock));
  });
}

void WindowBlocks::remove_sequence(SequenceId id) {
  const Sequence sequence = std::move(find_sequence(id));
  sequences_.erase(id);
  promised_ -= sequence.promised;
  more_ -= sequence.more;
  taken_ -= sequence.taken();
  // The last block is freed first, so that prefixes are evicted last.
  for (std::int64_t i = std::ssize(sequence.blocks); i-- > sequence.released;)
    release(sequence.blocks[static_cast<std::size_t>(i)]);
}

std::int64_t WindowBlocks::released_of(SequenceId id) const {
  return find_sequence(id).released;
}

void WindowBlocks::check_invariants() const {
  std::vector<std::int64_t> references(blocks_.size());
  std::int64_t promised = 0, more = 0, taken = 0;
  for (const auto& [id, sequence] : sequences_) {
    promised += sequence.promised;
    more += sequence.more;
    taken += sequence.taken();
    for (std::int64_t i = 0; i < std::ssize(sequence.blocks); ++i) {
      const BlockId block = sequence.blocks[static_cast<std::size_t>(i)];
      NVLLM_CHECK_EQ(block == kNoBlock, i < sequence.released);
      if (block != kNoBlock) ++references.at(static_cast<std::size_t>(block));
    }
  }
  NVLLM_CHECK_EQ(promised, promised_);
  NVLLM_CHECK_EQ(more, more_);
  NVLLM_CHECK_EQ(taken, taken_);
  NVLLM_CHECK_LE(taken, options_.blocks);

  std::int64_t free = 0, findable = 0;
  bool with_content = false;
  for (BlockId block = free_.front(); block != kNoBlock; block = free_.after(block), ++free) {
    NVLLM_CHECK_EQ(at(block).references, 0);
    const bool holds = at(block).content != BlockManager::kNoContent;
    NVLLM_CHECK(holds || !with_content, "free block ", block, " waits behind one with content");
    with_content = holds;
  }
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = blocks_[i];
    NVLLM_CHECK_EQ(block.references, references[i]);
    if (block.content == BlockManager::kNoContent) continue;
    ++findable;
    NVLLM_CHECK_EQ(by_content_.at(block.content), static_cast<BlockId>(i));
  }
  NVLLM_CHECK_EQ(free, std::ranges::count(references, 0));
  NVLLM_CHECK_EQ(free, free_.size());
  NVLLM_CHECK_EQ(findable, std::ssize(by_content_));
}

}  // namespace nvllm::kvcache
