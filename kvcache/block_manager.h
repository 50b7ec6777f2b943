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

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace nvllm::kvcache {

using BlockId = std::int32_t;
using SequenceId = std::uint64_t;

// The hash of a block's tokens, chained to that of the block before it.
using BlockHash = std::uint64_t (*)(std::uint64_t before, std::span<const std::int32_t> tokens);

struct BlockManagerOptions {
  std::int64_t blocks = 0;
  std::int64_t block_size = 0;  // tokens
  bool prefix_caching = true;
  BlockHash hash = nullptr;  // nullptr: xxHash; tests pass worse ones
};

// Counted since the start.
struct PrefixStatistics {
  std::uint64_t query_tokens = 0;    // of the sequences that began with a look-up
  std::uint64_t hit_tokens = 0;      // of those: were in the cache
  std::uint64_t evicted_blocks = 0;  // cached blocks that were given away
};

// Not thread-safe. Operations cost O(1) per block they touch. Wrong use (an id added twice, an
// unknown id) is a failed check.
class BlockManager {
 public:
  explicit BlockManager(const BlockManagerOptions& options);
  ~BlockManager();
  BlockManager(const BlockManager&) = delete;
  BlockManager& operator=(const BlockManager&) = delete;

  // Begins a sequence with the longest prefix of `tokens` that is cached in full blocks, but never
  // all of them: at least one token is left to be computed. `look_up` false: with nothing. Returns
  // how many tokens that are; takes no other block.
  std::int64_t add_sequence(SequenceId id, std::span<const std::int32_t> tokens,
                            bool look_up = true);
  // What begin() would find, and how many of those blocks are free now (taking them leaves fewer).
  struct Prefix {
    std::int64_t tokens = 0;
    std::int64_t free_blocks = 0;
  };
  Prefix find_prefix(std::span<const std::int32_t> tokens) const;

  // Gives it blocks for so many tokens in all. False, with nothing changed: there are not enough.
  bool allocate(SequenceId id, std::int64_t tokens);
  // `tokens`: the sequence's from its start, all computed, or to be computed by work that is
  // enqueued before any that could find them. Its full blocks can be found from now on.
  void cache_full_blocks(SequenceId id, std::span<const std::int32_t> tokens);
  void remove_sequence(SequenceId id);

  std::span<const BlockId> blocks_of(SequenceId id) const;
  std::int64_t blocks_for(std::int64_t tokens) const;  // how many hold so many tokens
  std::int64_t free_blocks() const;
  std::int64_t total_blocks() const;
  std::int64_t block_size() const;
  std::int64_t ref_count(BlockId block) const;  // sequences that use it
  PrefixStatistics statistics() const;
  void reset_prefix_cache();  // nothing that is cached now is found any more

  // For tests: everything that must always hold, or a failed check.
  void check_invariants() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nvllm::kvcache
