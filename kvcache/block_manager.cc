#include "kvcache/block_manager.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/math.h"

namespace nvllm::kvcache {
namespace {

constexpr BlockId kNone = -1;

// Names what a block holds: its tokens and all tokens before them. A number is never used again, so
// a block that names its predecessor's content cannot be taken for the successor of anything else.
using Content = std::uint64_t;
constexpr Content kNoContent = 0;    // of a block without tokens
constexpr Content kBeforeAll = 0;    // the predecessor of a sequence's first block
constexpr std::uint64_t kSeed = 17;  // the hash before a sequence's first block

std::uint64_t xxhash(std::uint64_t before, std::span<const std::int32_t> tokens) {
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), before);
}

// A position in a chain of blocks: after the block with this content and hash.
struct ChainPosition {
  Content content = kBeforeAll;
  std::uint64_t hash = kSeed;
};

struct Block {
  std::int64_t references = 0;
  BlockId before = kNone, after = kNone;  // in the list of free blocks
  ChainPosition position;                 // the content, if it can be found, and its hash
  Content predecessor = kBeforeAll;
  BlockId same_bucket = kNone;  // the next block in its bucket
};

struct Sequence {
  std::vector<BlockId> blocks;
  std::size_t committed = 0;  // blocks
  ChainPosition position;     // after the committed ones
  bool shares = true;         // false: its prefix was forgotten, so no block after it can be found
};

}  // namespace

// Blocks that can be found are in the buckets, by hash. Blocks in use may hold the same content
// several times (two sequences computed it at the same time); a free block never holds what another
// block holds.
struct BlockManager::State {
  explicit State(const BlockManagerOptions& wanted);

  std::span<const std::int32_t> tokens_of(BlockId block) const {
    const auto size = static_cast<std::size_t>(options.block_size);
    return std::span(tokens).subspan(static_cast<std::size_t>(block) * size, size);
  }
  std::span<const std::int32_t> block_of(std::span<const std::int32_t> all,
                                         std::size_t index) const {
    const auto size = static_cast<std::size_t>(options.block_size);
    return all.subspan(index * size, size);
  }
  Block& at(BlockId block) { return blocks[static_cast<std::size_t>(block)]; }
  const Block& at(BlockId block) const { return blocks[static_cast<std::size_t>(block)]; }
  BlockId& bucket(std::uint64_t hash) { return buckets[hash & (buckets.size() - 1)]; }
  BlockId bucket(std::uint64_t hash) const { return buckets[hash & (buckets.size() - 1)]; }
  Sequence& sequence(SequenceId id);

  // The block, but `without`, that holds these tokens after that position; their hash is known.
  BlockId find(const ChainPosition& before, std::uint64_t hash,
               std::span<const std::int32_t> tokens, BlockId without = kNone) const;
  // Calls take(block) for each block of the longest prefix that can be found, but never all tokens.
  template <class Take>
  void walk(std::span<const std::int32_t> tokens, const Take& take) const;
  ChainPosition publish(BlockId block, const ChainPosition& before,
                        std::span<const std::int32_t> tokens);
  void unpublish(BlockId block);

  void unlink(BlockId block);
  void link_first(BlockId block);  // to be given away before all others
  void link_last(BlockId block);
  BlockId allocate_free_block();
  void refer(BlockId block);
  void release(BlockId block);

  BlockManagerOptions options;
  std::vector<Block> blocks;
  std::vector<std::int32_t> tokens;  // [blocks, block_size], of those that can be found
  std::vector<BlockId> buckets;      // a power of two of them
  // Free blocks, those without tokens first, then the least recently used.
  BlockId first = kNone, last = kNone;
  std::int64_t free = 0;
  Content contents = kNoContent;  // numbers used so far
  std::unordered_map<SequenceId, Sequence> sequences;
  PrefixStatistics statistics;
};

BlockManager::State::State(const BlockManagerOptions& wanted) : options(wanted) {
  NVLLM_CHECK(options.blocks >= 0 && options.block_size > 0, options.blocks, " blocks of ",
              options.block_size);
  if (options.hash == nullptr) options.hash = &xxhash;
  const auto count = static_cast<std::size_t>(options.blocks);
  blocks.resize(count);
  tokens.resize(options.prefix_caching ? count * static_cast<std::size_t>(options.block_size) : 0);
  buckets.resize(std::bit_ceil(std::max<std::size_t>(count, 1)), kNone);
  for (BlockId block = 0; block < options.blocks; ++block) link_last(block);
}

Sequence& BlockManager::State::sequence(SequenceId id) {
  const auto found = sequences.find(id);
  NVLLM_CHECK(found != sequences.end(), "there is no sequence ", id);
  return found->second;
}

BlockId BlockManager::State::find(const ChainPosition& before, std::uint64_t hash,
                                  std::span<const std::int32_t> wanted, BlockId without) const {
  for (BlockId block = bucket(hash); block != kNone; block = at(block).same_bucket) {
    const Block& candidate = at(block);
    if (candidate.position.hash == hash && candidate.predecessor == before.content &&
        block != without && std::ranges::equal(tokens_of(block), wanted)) {
      return block;
    }
  }
  return kNone;
}

template <class Take>
void BlockManager::State::walk(std::span<const std::int32_t> wanted, const Take& take) const {
  if (!options.prefix_caching || wanted.empty()) return;
  const std::size_t most = (wanted.size() - 1) / static_cast<std::size_t>(options.block_size);
  ChainPosition position;
  for (std::size_t index = 0; index < most; ++index) {
    const auto part = block_of(wanted, index);
    const BlockId block = find(position, options.hash(position.hash, part), part);
    if (block == kNone) return;
    take(block);
    position = at(block).position;
  }
}

ChainPosition BlockManager::State::publish(BlockId block, const ChainPosition& before,
                                           std::span<const std::int32_t> content) {
  Block& own = at(block);
  NVLLM_CHECK(own.position.content == kNoContent, "block ", block, " can be found already");
  own.position.hash = options.hash(before.hash, content);
  own.predecessor = before.content;
  const BlockId other = find(before, own.position.hash, content);
  own.position.content = other == kNone ? ++contents : at(other).position.content;
  if (other != kNone && at(other).references == 0) {  // this one takes its position
    unpublish(other);
    unlink(other);
    link_first(other);
  }
  std::ranges::copy(content, tokens.begin() + std::ptrdiff_t{block} * options.block_size);
  own.same_bucket = std::exchange(bucket(own.position.hash), block);
  return own.position;
}

void BlockManager::State::unpublish(BlockId block) {
  Block& own = at(block);
  BlockId* link = &bucket(own.position.hash);
  while (*link != block) link = &at(*link).same_bucket;
  *link = own.same_bucket;
  own.same_bucket = kNone;
  own.position = {};
  own.predecessor = kBeforeAll;
}

void BlockManager::State::unlink(BlockId block) {
  Block& own = at(block);
  (own.before == kNone ? first : at(own.before).after) = own.after;
  (own.after == kNone ? last : at(own.after).before) = own.before;
  own.before = own.after = kNone;
  --free;
}

void BlockManager::State::link_first(BlockId block) {
  at(block).after = first;
  (first == kNone ? last : at(first).before) = block;
  first = block;
  ++free;
}

void BlockManager::State::link_last(BlockId block) {
  at(block).before = last;
  (last == kNone ? first : at(last).after) = block;
  last = block;
  ++free;
}

BlockId BlockManager::State::allocate_free_block() {
  const BlockId block = first;
  unlink(block);
  if (at(block).position.content != kNoContent) {
    unpublish(block);
    ++statistics.evicted_blocks;
  }
  at(block).references = 1;
  return block;
}

void BlockManager::State::refer(BlockId block) {
  if (at(block).references++ == 0) unlink(block);
}

void BlockManager::State::release(BlockId block) {
  Block& own = at(block);
  if (--own.references > 0) return;
  if (own.position.content != kNoContent) {
    ChainPosition before;
    before.content = own.predecessor;
    if (find(before, own.position.hash, tokens_of(block), block) == kNone) return link_last(block);
    unpublish(block);  // another one holds the same
  }
  link_first(block);
}

BlockManager::BlockManager(const BlockManagerOptions& options)
    : state_(std::make_unique<State>(options)) {}

BlockManager::~BlockManager() = default;

std::int64_t BlockManager::add_sequence(SequenceId id, std::span<const std::int32_t> tokens,
                                        bool look_up) {
  State& state = *state_;
  const auto [entry, is_new] = state.sequences.try_emplace(id);
  NVLLM_CHECK(is_new, "sequence ", id, " exists already");
  if (!look_up) return 0;
  Sequence& sequence = entry->second;
  state.walk(tokens, [&](BlockId block) {
    sequence.blocks.push_back(block);
    sequence.position = state.at(block).position;
  });
  for (const BlockId block : sequence.blocks) state.refer(block);
  sequence.committed = sequence.blocks.size();
  const std::int64_t found = std::ssize(sequence.blocks) * state.options.block_size;
  state.statistics.query_tokens += tokens.size();
  state.statistics.hit_tokens += static_cast<std::uint64_t>(found);
  return found;
}

BlockManager::Prefix BlockManager::find_prefix(std::span<const std::int32_t> tokens) const {
  Prefix prefix;
  state_->walk(tokens, [&](BlockId block) {
    prefix.tokens += state_->options.block_size;
    prefix.free_blocks += state_->at(block).references == 0 ? 1 : 0;
  });
  return prefix;
}

bool BlockManager::allocate(SequenceId id, std::int64_t tokens) {
  Sequence& sequence = state_->sequence(id);
  const std::int64_t more = blocks_for(tokens) - std::ssize(sequence.blocks);
  if (more > state_->free) return false;
  for (std::int64_t i = 0; i < more; ++i) sequence.blocks.push_back(state_->allocate_free_block());
  return true;
}

void BlockManager::cache_full_blocks(SequenceId id, std::span<const std::int32_t> tokens) {
  State& state = *state_;
  Sequence& sequence = state.sequence(id);
  const std::size_t full = tokens.size() / static_cast<std::size_t>(state.options.block_size);
  NVLLM_CHECK(full <= sequence.blocks.size(), "sequence ", id, " has ", sequence.blocks.size(),
              " blocks, not ", full);
  if (!state.options.prefix_caching || !sequence.shares) return;
  for (; sequence.committed < full; ++sequence.committed) {
    sequence.position = state.publish(sequence.blocks[sequence.committed], sequence.position,
                                      state.block_of(tokens, sequence.committed));
  }
}

void BlockManager::remove_sequence(SequenceId id) {
  // The last block first: a prefix outlives what follows it.
  const Sequence sequence = std::move(state_->sequence(id));
  for (auto block = sequence.blocks.rbegin(); block != sequence.blocks.rend(); ++block) {
    state_->release(*block);
  }
  state_->sequences.erase(id);
}

std::span<const BlockId> BlockManager::blocks_of(SequenceId id) const {
  return state_->sequence(id).blocks;
}

std::int64_t BlockManager::blocks_for(std::int64_t tokens) const {
  return divide_up(tokens, state_->options.block_size);
}

std::int64_t BlockManager::free_blocks() const {
  return state_->free;
}
std::int64_t BlockManager::total_blocks() const {
  return state_->options.blocks;
}
std::int64_t BlockManager::block_size() const {
  return state_->options.block_size;
}

std::int64_t BlockManager::ref_count(BlockId block) const {
  NVLLM_CHECK(block >= 0 && block < total_blocks(), "block ", block, " of ", total_blocks());
  return state_->at(block).references;
}

PrefixStatistics BlockManager::statistics() const {
  return state_->statistics;
}

void BlockManager::reset_prefix_cache() {
  for (BlockId block = 0; block < total_blocks(); ++block) {
    if (state_->at(block).position.content != kNoContent) state_->unpublish(block);
  }
  // What follows a forgotten block could not be found, and would only be in the way of what can be.
  for (auto& [id, sequence] : state_->sequences) sequence.shares = false;
}

void BlockManager::check_invariants() const {
  const State& state = *state_;
  std::vector<std::int64_t> references(state.blocks.size());
  for (const auto& [id, sequence] : state.sequences) {
    NVLLM_CHECK_LE(sequence.committed, sequence.blocks.size());
    Content before = kBeforeAll;
    for (std::size_t i = 0; i < sequence.blocks.size(); ++i) {
      const Block& block = state.at(sequence.blocks[i]);
      ++references[static_cast<std::size_t>(sequence.blocks[i])];
      const bool findable = sequence.shares && i < sequence.committed;
      NVLLM_CHECK_EQ(block.position.content != kNoContent, findable);
      if (findable)
        NVLLM_CHECK_EQ(block.predecessor, std::exchange(before, block.position.content));
    }
  }
  for (std::size_t i = 0; i < references.size(); ++i) {
    NVLLM_CHECK_EQ(state.blocks[i].references, references[i]);
  }
  std::int64_t free = 0;
  bool with_tokens = false;
  BlockId before = kNone;
  for (BlockId i = state.first; i != kNone; before = i, i = state.at(i).after) {
    const Block& block = state.at(i);
    NVLLM_CHECK_EQ(block.references, 0);
    NVLLM_CHECK_EQ(block.before, before);
    const bool holds = block.position.content != kNoContent;
    NVLLM_CHECK(holds || !with_tokens, "free block ", i, " waits behind one with tokens");
    with_tokens = holds;
    ++free;
  }
  NVLLM_CHECK_EQ(before, state.last);
  NVLLM_CHECK_EQ(free, state.free);
  NVLLM_CHECK_EQ(free, std::ranges::count(references, 0));

  std::unordered_map<Content, std::vector<BlockId>> holders;
  for (std::size_t index = 0; index < state.buckets.size(); ++index) {
    for (BlockId i = state.buckets[index]; i != kNone; i = state.at(i).same_bucket) {
      NVLLM_CHECK(state.at(i).position.content != kNoContent, "block ", i);
      NVLLM_CHECK_EQ(state.at(i).position.hash & (state.buckets.size() - 1), index);
      holders[state.at(i).position.content].push_back(i);
    }
  }
  std::int64_t findable = 0;
  for (const auto& [content, which] : holders) {
    findable += std::ssize(which);
    for (const BlockId i : which) {
      NVLLM_CHECK(which.size() == 1 || state.at(i).references > 0, "free block ", i,
                  " holds what another one holds");
      NVLLM_CHECK(std::ranges::equal(state.tokens_of(i), state.tokens_of(which.front())));
    }
  }
  NVLLM_CHECK_EQ(findable, std::ranges::count_if(state.blocks, [](const Block& block) {
                   return block.position.content != kNoContent;
                 }));
}

}  // namespace nvllm::kvcache
