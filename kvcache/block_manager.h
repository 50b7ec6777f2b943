// BlockManager assigns the blocks of a paged KV cache to the tokens of sequences. It is pure
// bookkeeping and runs on rank 0; every rank's storage follows its decisions.
//
//   BlockManager blocks({.blocks = 100, .block_size = 16});
//   const std::int64_t cached = blocks.add_sequence(7, prompt);  // tokens of a cached prefix
//   if (!blocks.allocate(7, prompt.size())) ...    // too few free blocks; nothing has changed
//   blocks.cache_full_blocks(7, prompt);           // other sequences may share its full blocks now
//   blocks.remove_sequence(7);                     // its blocks stay cached until they are needed
//
// A block is free (its reference count is 0) or in use. A free block whose tokens were cached keeps
// them and can be found again until it is evicted. Blocks without cached tokens are allocated
// first, then the least recently used.
//
// A block's hash (xxHash, 64 bits) is chained to the hash of the previous block. Before a block is
// shared, its tokens and its predecessor are compared as well, so a hash collision never makes two
// prefixes equal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/math.h"
#include "kvcache/free_blocks.h"

namespace nvllm::kvcache {

using SequenceId = std::uint64_t;

// The hash of a block's tokens, chained to that of the previous block.
using BlockHash = std::uint64_t (*)(std::uint64_t before, std::span<const std::int32_t> tokens);

struct BlockManagerOptions {
  std::int64_t blocks = 0;
  std::int64_t block_size = 0;  // tokens
  bool prefix_caching = true;
  bool names_evicted = false;  // the caller uses take_evicted()
  BlockHash hash = nullptr;    // nullptr: xxHash; tests pass weaker ones
};

// Counters since the start.
struct PrefixStatistics {
  std::uint64_t query_tokens = 0;    // of sequences whose prefix was looked up
  std::uint64_t hit_tokens = 0;      // of these, how many were in the cache
  std::uint64_t evicted_blocks = 0;  // cached blocks that were reused for other tokens
};

// Not thread-safe. Operations cost O(1) per block they touch. Wrong use (an id added twice, an
// unknown id) is a failed check.
class BlockManager {
 public:
  explicit BlockManager(const BlockManagerOptions& options);
  BlockManager(const BlockManager&) = delete;
  BlockManager& operator=(const BlockManager&) = delete;

  // Identifies the content of a block: its tokens and all tokens before them. No number is used
  // twice, so a block whose recorded predecessor was evicted can never match another one.
  using Content = std::uint64_t;
  static constexpr Content kNoContent = 0;  // of a block without tokens
  static constexpr std::int64_t kAnyLength = std::numeric_limits<std::int64_t>::max();

  // Adds a sequence that starts with the longest prefix of `tokens` that is cached in full blocks,
  // of at most max_prefix tokens, and never all tokens: at least one must be computed. With look_up
  // == false it starts empty. Returns the number of tokens of the prefix. The sequence gets no
  // other block.
  std::int64_t add_sequence(SequenceId id, std::span<const std::int32_t> tokens,
                            bool look_up = true, std::int64_t max_prefix = kAnyLength);
  // The prefix that add_sequence() would find, and how many of its blocks are free now: adding the
  // sequence takes that many.
  struct Prefix {
    std::int64_t tokens = 0;
    std::int64_t free_blocks = 0;
  };
  Prefix find_prefix(std::span<const std::int32_t> tokens,
                     std::int64_t max_prefix = kAnyLength) const;
  // The contents of that prefix's blocks, in order.
  std::vector<Content> contents_of_prefix(std::span<const std::int32_t> tokens) const;

  // Extends the sequence's blocks to `tokens` tokens in all. Returns false, and changes nothing, if
  // there are too few free blocks.
  bool allocate(SequenceId id, std::int64_t tokens);
  // Adds the sequence's full blocks to the prefix cache. tokens: the sequence's from its start, all
  // computed, or to be computed by work that is enqueued before any that could find them.
  void cache_full_blocks(SequenceId id, std::span<const std::int32_t> tokens);
  // Frees the first `count` blocks of the sequence, which it no longer needs, as far as their
  // tokens are in the prefix cache or cannot get there.
  void release_first(SequenceId id, std::int64_t count);
  // Keeps the sequence's blocks out of the prefix cache. None may be in it yet.
  void stop_sharing(SequenceId id);
  void remove_sequence(SequenceId id);

  // Blocks freed by release_first() are kNone.
  std::span<const BlockId> blocks_of(SequenceId id) const;
  std::int64_t released_of(SequenceId id) const;  // the number of leading kNone blocks
  // The content of block number `index` of the sequence, which has not been released; kNoContent:
  // it is not in the prefix cache.
  Content content_of(SequenceId id, std::int64_t index) const;
  // The number of blocks for this many tokens.
  std::int64_t blocks_for(std::int64_t tokens) const {
    return divide_up(tokens, options_.block_size);
  }
  std::int64_t free_blocks() const { return free_.size(); }
  std::int64_t total_blocks() const { return options_.blocks; }
  std::int64_t block_size() const { return options_.block_size; }
  std::int64_t ref_count(BlockId block) const;  // how many sequences use it
  PrefixStatistics statistics() const { return statistics_; }
  void reset_prefix_cache();  // nothing that is cached now can be found any more
  // With names_evicted: the contents of blocks evicted since the last call. No block has them now.
  std::vector<Content> take_evicted() { return std::exchange(evicted_, {}); }

  // For tests: checks all invariants.
  void check_invariants() const;

  static constexpr BlockId kNone = kNoBlock;

 private:
  static constexpr Content kBeforeAll = 0;    // the predecessor of a sequence's first block
  static constexpr std::uint64_t kSeed = 17;  // the hash before a sequence's first block

  // A position in a chain of blocks: after the block with this content and hash.
  struct ChainPosition {
    Content content = kBeforeAll;
    std::uint64_t hash = kSeed;
  };
  struct Block {
    std::int64_t references = 0;
    ChainPosition position;  // content if it can be found, and hash
    Content predecessor = kBeforeAll;
    BlockId same_bucket = kNone;  // the next block in its bucket
  };
  struct Sequence {
    std::vector<BlockId> blocks;
    std::size_t committed = 0;  // blocks
    std::size_t released = 0;   // leading released blocks
    ChainPosition position;     // after the committed ones
    // False: its prefix was forgotten or is unknown, so no later block of it can be found.
    bool shares = true;
  };

  Block& at(BlockId block) { return blocks_[static_cast<std::size_t>(block)]; }
  const Block& at(BlockId block) const { return blocks_[static_cast<std::size_t>(block)]; }
  BlockId& bucket(std::uint64_t hash) { return buckets_[hash & (buckets_.size() - 1)]; }
  BlockId bucket(std::uint64_t hash) const { return buckets_[hash & (buckets_.size() - 1)]; }
  Sequence& find_sequence(SequenceId id);
  const Sequence& find_sequence(SequenceId id) const;
  // The tokens of block number `index` of a sequence, and of a cached block.
  std::span<const std::int32_t> block_of(std::span<const std::int32_t> all,
                                         std::size_t index) const {
    const auto size = static_cast<std::size_t>(options_.block_size);
    return all.subspan(index * size, size);
  }
  std::span<const std::int32_t> tokens_of(BlockId block) const {
    return block_of(tokens_, static_cast<std::size_t>(block));
  }

  // A block other than `without` that has these tokens, with this hash, at that position.
  BlockId find(const ChainPosition& before, std::uint64_t hash,
               std::span<const std::int32_t> tokens, BlockId without = kNone) const;
  // Calls take(block) for each block of the longest cached prefix, of at most max_prefix tokens,
  // and never all tokens.
  template <class Take>
  void walk(std::span<const std::int32_t> tokens, std::int64_t max_prefix, const Take& take) const;
  ChainPosition publish(BlockId block, const ChainPosition& before,
                        std::span<const std::int32_t> tokens);
  void unpublish(BlockId block);

  BlockId allocate_free_block();
  void refer(BlockId block);
  void release(BlockId block);

  BlockManagerOptions options_;
  std::vector<Block> blocks_;
  std::vector<std::int32_t> tokens_;  // [blocks, block_size], of cached blocks
  // Hash table of cached blocks; its size is a power of two. Several blocks in use may have the
  // same content, if sequences computed it at the same time. A free block never has the content of
  // another block.
  std::vector<BlockId> buckets_;
  FreeBlocks free_;
  Content contents_ = kNoContent;  // numbers used so far
  std::vector<Content> evicted_;
  std::unordered_map<SequenceId, Sequence> sequences_;
  PrefixStatistics statistics_;
};

}  // namespace nvllm::kvcache
