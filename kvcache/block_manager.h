// BlockManager: which blocks of a paged KV cache hold which tokens of which sequences. It is pure
// bookkeeping and runs on rank 0; every rank's storage follows its decisions.
//
//   BlockManager blocks({.blocks = 100, .block_size = 16});
//   const std::int64_t cached = blocks.add_sequence(7, prompt);  // tokens of a cached prefix
//   if (!blocks.allocate(7, prompt.size())) ...    // too few free blocks; nothing has changed
//   blocks.cache_full_blocks(7, prompt);           // other sequences may share its full blocks now
//   blocks.remove_sequence(7);                     // its blocks stay cached until they are needed
//
// A block is free (its reference count is 0) or in use. A free block whose tokens were cached keeps
// them and can be found again until it is evicted. Blocks without cached tokens are taken first,
// then the least recently used.
//
// A block's hash (xxHash, 64 bits) is chained to the hash of the block before it. Before a block is
// shared, its tokens and its predecessor are compared as well, so two prefixes with the same hash
// are never mistaken for each other.
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

// The hash of a block's tokens, chained to that of the block before it.
using BlockHash = std::uint64_t (*)(std::uint64_t before, std::span<const std::int32_t> tokens);

struct BlockManagerOptions {
  std::int64_t blocks = 0;
  std::int64_t block_size = 0;  // tokens
  bool prefix_caching = true;
  bool names_evicted = false;  // take_evicted() is called now and then
  BlockHash hash = nullptr;    // nullptr: xxHash; tests pass worse ones
};

// Counted since the start.
struct PrefixStatistics {
  std::uint64_t query_tokens = 0;    // of sequences whose prefix was looked up
  std::uint64_t hit_tokens = 0;      // of these, how many were in the cache
  std::uint64_t evicted_blocks = 0;  // cached blocks that other tokens took
};

// Not thread-safe. Operations cost O(1) per block they touch. Wrong use (an id added twice, an
// unknown id) is a failed check.
class BlockManager {
 public:
  explicit BlockManager(const BlockManagerOptions& options);
  BlockManager(const BlockManager&) = delete;
  BlockManager& operator=(const BlockManager&) = delete;

  // A number for what a block holds: its tokens and all tokens before them. No number is used
  // twice, so a block that names its predecessor's content cannot be taken for the successor of
  // anything else.
  using Content = std::uint64_t;
  static constexpr Content kNoContent = 0;  // of a block without tokens
  static constexpr std::int64_t kAnyLength = std::numeric_limits<std::int64_t>::max();

  // Adds a sequence that starts with the longest prefix of `tokens` that is cached in full blocks,
  // but never all of them: at least one token is left to be computed. It has max_prefix tokens at
  // most. With look_up == false it starts with nothing. Returns how many tokens the prefix has. The
  // sequence gets no other block.
  std::int64_t add_sequence(SequenceId id, std::span<const std::int32_t> tokens,
                            bool look_up = true, std::int64_t max_prefix = kAnyLength);
  // The prefix that add_sequence() would find, and how many of its blocks are free now: adding the
  // sequence leaves that many fewer.
  struct Prefix {
    std::int64_t tokens = 0;
    std::int64_t free_blocks = 0;
  };
  Prefix find_prefix(std::span<const std::int32_t> tokens,
                     std::int64_t max_prefix = kAnyLength) const;
  // What the blocks of that prefix hold, from the first on.
  std::vector<Content> contents_of_prefix(std::span<const std::int32_t> tokens) const;

  // Gives the sequence blocks for so many tokens in all. Returns false, and changes nothing, if
  // there are not enough.
  bool allocate(SequenceId id, std::int64_t tokens);
  // Puts the sequence's full blocks into the prefix cache. tokens: the sequence's from its start,
  // all computed, or to be computed by work that is enqueued before any that could find them.
  void cache_full_blocks(SequenceId id, std::span<const std::int32_t> tokens);
  // Frees the first `count` blocks of the sequence, which it no longer needs, as far as their
  // tokens are in the prefix cache or cannot get there.
  void release_first(SequenceId id, std::int64_t count);
  // No block of the sequence will be in the prefix cache. It has none yet that is.
  void stop_sharing(SequenceId id);
  void remove_sequence(SequenceId id);

  // Those that release_first() freed are kNone.
  std::span<const BlockId> blocks_of(SequenceId id) const;
  std::int64_t released_of(SequenceId id) const;  // how many are kNone: the first ones
  // What block number `index` of the sequence, which was not released, holds; kNoContent: it is not
  // in the prefix cache.
  Content content_of(SequenceId id, std::int64_t index) const;
  // How many blocks hold so many tokens.
  std::int64_t blocks_for(std::int64_t tokens) const {
    return divide_up(tokens, options_.block_size);
  }
  std::int64_t free_blocks() const { return free_.size(); }
  std::int64_t total_blocks() const { return options_.blocks; }
  std::int64_t block_size() const { return options_.block_size; }
  std::int64_t ref_count(BlockId block) const;  // how many sequences use it
  PrefixStatistics statistics() const { return statistics_; }
  void reset_prefix_cache();  // nothing that is cached now is found any more
  // names_evicted: what blocks held that were evicted since the last call. No block holds it now.
  std::vector<Content> take_evicted() { return std::exchange(evicted_, {}); }

  // For tests: everything that must always hold, or a failed check.
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
    ChainPosition position;  // the content, if it can be found, and its hash
    Content predecessor = kBeforeAll;
    BlockId same_bucket = kNone;  // the next block in its bucket
  };
  struct Sequence {
    std::vector<BlockId> blocks;
    std::size_t committed = 0;  // blocks
    std::size_t released = 0;   // blocks, the first
    ChainPosition position;     // after the committed ones
    // False: its prefix was forgotten or never known, so no block after it can be found.
    bool shares = true;
  };

  Block& at(BlockId block) { return blocks_[static_cast<std::size_t>(block)]; }
  const Block& at(BlockId block) const { return blocks_[static_cast<std::size_t>(block)]; }
  BlockId& bucket(std::uint64_t hash) { return buckets_[hash & (buckets_.size() - 1)]; }
  BlockId bucket(std::uint64_t hash) const { return buckets_[hash & (buckets_.size() - 1)]; }
  Sequence& find_sequence(SequenceId id);
  const Sequence& find_sequence(SequenceId id) const;
  // The tokens of block number `index` of a sequence, and of a block that can be found.
  std::span<const std::int32_t> block_of(std::span<const std::int32_t> all,
                                         std::size_t index) const {
    const auto size = static_cast<std::size_t>(options_.block_size);
    return all.subspan(index * size, size);
  }
  std::span<const std::int32_t> tokens_of(BlockId block) const {
    return block_of(tokens_, static_cast<std::size_t>(block));
  }

  // The block, except `without`, that holds these tokens after that position; hash: theirs.
  BlockId find(const ChainPosition& before, std::uint64_t hash,
               std::span<const std::int32_t> tokens, BlockId without = kNone) const;
  // Calls take(block) for each block of the longest prefix that can be found, of max_prefix tokens
  // at most, but never for all tokens.
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
  std::vector<std::int32_t> tokens_;  // [blocks, block_size], of blocks that can be found
  // Blocks that can be found, by hash; their number is a power of two. Blocks in use may hold the
  // same content several times, if several sequences computed it at the same time. A free block
  // never holds what another block holds.
  std::vector<BlockId> buckets_;
  FreeBlocks free_;
  Content contents_ = kNoContent;  // numbers used so far
  std::vector<Content> evicted_;
  std::unordered_map<SequenceId, Sequence> sequences_;
  PrefixStatistics statistics_;
};

}  // namespace nvllm::kvcache
