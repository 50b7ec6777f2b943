// WindowBlocks assigns blocks to sliding-window layers that form a group with blocks of its own,
// next to the group that keeps all tokens (BlockManager). It is pure bookkeeping, on rank 0.
//
// A sequence has the blocks of its newest tokens only: those that the next row to be computed
// attends to, and the rows' own. Earlier blocks are released while the sequence runs. Positions do
// not change: the block of token t is number t / block_size of the sequence, and the entry of a
// block that was released, or never allocated, is kNoBlock.
//
// Blocks are reserved, so that a running sequence never waits for one. Each sequence reserves what
// it needs to compute its rows one by one (window_blocks(), or fewer if it cannot become that
// long). Chunks of prompts take more than that for the time of a step, up to max_tokens().
// Invariant: the sum over all sequences of max(promised, has) is at most the number of blocks; so
// there is a free block for each reserved one, whatever is shared.
//
// A released block stays cached until its memory is needed. Its content has the number that the
// group of all tokens has for the same tokens (BlockManager::Content), which has compared the
// tokens and their prefix. Such a number is never used twice, so a block whose partner there was
// evicted is not found again.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/math.h"
#include "kvcache/block_manager.h"
#include "kvcache/free_blocks.h"

namespace nvllm::kvcache {

struct WindowBlocksOptions {
  std::int64_t blocks = 0;
  std::int64_t block_size = 0;  // tokens, as in the group of all tokens
  std::int64_t window = 0;      // max. tokens that a row attends to, itself included
  std::int64_t chunk_rows = 0;  // rows of a step that admission keeps blocks free for
};

// Blocks that a sequence of any length needs to compute its rows one by one.
inline std::int64_t window_blocks(std::int64_t window, std::int64_t block_size) {
  return divide_up(window - 1, block_size) + 1;
}

// Not thread-safe. Wrong use (an unknown id, more than max_tokens()) is a failed check.
class WindowBlocks {
 public:
  using Content = BlockManager::Content;

  explicit WindowBlocks(const WindowBlocksOptions& options);
  WindowBlocks(const WindowBlocks&) = delete;
  WindowBlocks& operator=(const WindowBlocks&) = delete;

  // The index of the first block that a row at this position attends to.
  std::int64_t first_needed(std::int64_t position) const;

  // contents: of the blocks of a prefix in the group of all tokens. Returns the tokens of its
  // longest part, in full blocks, after which a row finds all blocks that it attends to.
  std::int64_t find_prefix(std::span<const Content> contents) const;

  // Whether blocks for one more sequence, of at most max_length tokens, can be reserved, leaving
  // enough for a step's rows, or a quarter of all blocks if that is less; or it is the only
  // sequence.
  bool has_room_for(std::int64_t max_length) const;
  // Adds a sequence that starts after these blocks, of which it shares those that its next row
  // attends to: they are a prefix found by find_prefix(). Requires has_room_for(max_length).
  void add_sequence(SequenceId id, std::int64_t max_length, std::span<const Content> prefix);
  // Adds a sequence with `computed` tokens already computed: it gets blocks without content for
  // those that its next row attends to.
  void add_computed_sequence(SequenceId id, std::int64_t max_length, std::int64_t computed);
  // How many tokens the sequence can have blocks for now; includes at least the next row.
  std::int64_t max_tokens(SequenceId id) const;
  // Extends the sequence's blocks to `tokens` tokens in all.
  void allocate(SequenceId id, std::int64_t tokens);
  // Other sequences may find the sequence's first blocks, as far as it still has them: content_of
  // is called with the index of each that was not cached before, up to `end`.
  template <typename ContentOf>
  void cache_blocks(SequenceId id, std::int64_t end, const ContentOf& content_of) {
    for (std::int64_t& next = find_sequence(id).next_cached; next < end; ++next)
      publish(blocks_of(id)[static_cast<std::size_t>(next)], content_of(next));
  }
  // Releases the blocks that no row from this position on attends to.
  void release_unseen(SequenceId id, std::int64_t position);
  void remove_sequence(SequenceId id);

  std::span<const BlockId> blocks_of(SequenceId id) const { return find_sequence(id).blocks; }
  std::int64_t released_of(SequenceId id) const;  // the number of leading kNoBlock entries
  std::int64_t free_blocks() const { return free_.size(); }
  std::int64_t total_blocks() const { return options_.blocks; }
  std::int64_t window() const { return options_.window; }

  // For tests: checks all invariants.
  void check_invariants() const;

 private:
  struct Block {
    std::int64_t references = 0;
    Content content = BlockManager::kNoContent;  // if it can be found
  };
  struct Sequence {
    std::vector<BlockId> blocks = {};
    std::int64_t released = 0;     // leading blocks
    std::int64_t next_cached = 0;  // the first block not yet seen by cache_blocks()
    std::int64_t promised = 0;     // blocks
    std::int64_t more = 0;         // beyond these, available to a chunk

    std::int64_t has() const { return std::ssize(blocks) - released; }
    std::int64_t taken() const { return std::max(promised, has()); }
  };

  Block& at(BlockId block) { return blocks_[static_cast<std::size_t>(block)]; }
  const Block& at(BlockId block) const { return blocks_[static_cast<std::size_t>(block)]; }
  Sequence& find_sequence(SequenceId id);
  const Sequence& find_sequence(SequenceId id) const;
  std::int64_t promise(std::int64_t max_length) const;
  std::int64_t more_than_promised(std::int64_t max_length) const;
  Sequence& insert(SequenceId id, std::int64_t max_length, std::int64_t blocks_before);
  // Calls change(), which changes the sequence's blocks, and updates the counters.
  template <typename Change>
  void count_change(Sequence& sequence, const Change& change);
  BlockId take_free_block();
  void publish(BlockId block, Content content);
  void unpublish(BlockId block);
  void release(BlockId block);

  const WindowBlocksOptions options_;
  std::vector<Block> blocks_;
  std::unordered_map<Content, BlockId> by_content_;  // cached blocks
  FreeBlocks free_;
  std::unordered_map<SequenceId, Sequence> sequences_;
  std::int64_t promised_ = 0, more_ = 0, taken_ = 0;  // of all sequences
};

}  // namespace nvllm::kvcache
