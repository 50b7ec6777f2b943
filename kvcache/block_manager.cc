#include "kvcache/block_manager.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/math.h"

namespace nvllm::kvcache {
namespace {

std::uint64_t xxhash(std::uint64_t before, std::span<const std::int32_t> tokens) {
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), before);
}

}  // namespace

BlockManager::BlockManager(const BlockManagerOptions& options)
    : options_(options), free_(options.blocks) {
  NVLLM_CHECK(options_.blocks >= 0 && options_.block_size > 0, options_.blocks, " blocks of ",
              options_.block_size);
  if (options_.hash == nullptr) options_.hash = &xxhash;
  const auto count = static_cast<std::size_t>(options_.blocks);
  blocks_.resize(count);
  tokens_.resize(options_.prefix_caching ? count * static_cast<std::size_t>(options_.block_size)
                                         : 0);
  buckets_.resize(std::bit_ceil(std::max<std::size_t>(count, 1)), kNone);
}

// --- Blocks ---

BlockId BlockManager::find(const ChainPosition& before, std::uint64_t hash,
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
void BlockManager::walk(std::span<const std::int32_t> wanted, std::int64_t max_prefix,
                        const Take& take) const {
  if (!options_.prefix_caching || wanted.empty()) return;
  const auto max_tokens = std::min(std::ssize(wanted) - 1, max_prefix);
  const auto max_blocks = static_cast<std::size_t>(max_tokens / options_.block_size);
  ChainPosition position;
  for (std::size_t index = 0; index < max_blocks; ++index) {
    const auto part = block_of(wanted, index);
    const BlockId block = find(position, options_.hash(position.hash, part), part);
    if (block == kNone) return;
    take(block);
    position = at(block).position;
  }
}

BlockManager::ChainPosition BlockManager::publish(BlockId block, const ChainPosition& before,
                                                  std::span<const std::int32_t> content) {
  Block& own = at(block);
  NVLLM_CHECK(own.position.content == kNoContent, "block ", block, " can be found already");
  own.position.hash = options_.hash(before.hash, content);
  own.predecessor = before.content;
  const BlockId other = find(before, own.position.hash, content);
  own.position.content = other == kNone ? ++contents_ : at(other).position.content;
  if (other != kNone && at(other).references == 0) {  // this block replaces it
    unpublish(other);
    free_.remove(other);
    free_.push_front(other);
  }
  std::ranges::copy(content, tokens_.begin() + std::ptrdiff_t{block} * options_.block_size);
  own.same_bucket = std::exchange(bucket(own.position.hash), block);
  return own.position;
}

void BlockManager::unpublish(BlockId block) {
  Block& own = at(block);
  BlockId* link = &bucket(own.position.hash);
  while (*link != block) link = &at(*link).same_bucket;
  *link = own.same_bucket;
  own.same_bucket = kNone;
  own.position = {};
  own.predecessor = kBeforeAll;
}

BlockId BlockManager::allocate_free_block() {
  const BlockId block = free_.front();
  free_.remove(block);
  if (at(block).position.content != kNoContent) {
    // No other block has the same content: a free one never does.
    if (options_.names_evicted) evicted_.push_back(at(block).position.content);
    unpublish(block);
    ++statistics_.evicted_blocks;
  }
  at(block).references = 1;
  return block;
}

void BlockManager::refer(BlockId block) {
  if (at(block).references++ == 0) free_.remove(block);
}

void BlockManager::release(BlockId block) {
  Block& own = at(block);
  if (--own.references > 0) return;
  if (own.position.content != kNoContent) {
    ChainPosition before;
    before.content = own.predecessor;
    if (find(before, own.position.hash, tokens_of(block), block) == kNone)
      return free_.push_back(block);
    unpublish(block);  // another block has the same content
  }
  free_.push_front(block);
}

// --- Sequences ---

BlockManager::Sequence& BlockManager::find_sequence(SequenceId id) {
  const auto found = sequences_.find(id);
  NVLLM_CHECK(found != sequences_.end(), "there is no sequence ", id);
  return found->second;
}

const BlockManager::Sequence& BlockManager::find_sequence(SequenceId id) const {
  const auto found = sequences_.find(id);
  NVLLM_CHECK(found != sequences_.end(), "there is no sequence ", id);
  return found->second;
}

std::int64_t BlockManager::add_sequence(SequenceId id, std::span<const std::int32_t> tokens,
                                        bool look_up, std::int64_t max_prefix) {
  const auto [entry, is_new] = sequences_.try_emplace(id);
  NVLLM_CHECK(is_new, "sequence ", id, " exists already");
  if (!look_up) return 0;
  Sequence& sequence = entry->second;
  walk(tokens, max_prefix, [&](BlockId block) {
    sequence.blocks.push_back(block);
    sequence.position = at(block).position;
  });
  for (const BlockId block : sequence.blocks) refer(block);
  sequence.committed = sequence.blocks.size();
  const std::int64_t found = std::ssize(sequence.blocks) * options_.block_size;
  statistics_.query_tokens += tokens.size();
  statistics_.hit_tokens += static_cast<std::uint64_t>(found);
  return found;
}

BlockManager::Prefix BlockManager::find_prefix(std::span<const std::int32_t> tokens,
                                               std::int64_t max_prefix) const {
  Prefix prefix;
  walk(tokens, max_prefix, [&](BlockId block) {
    prefix.tokens += options_.block_size;
    prefix.free_blocks += at(block).references == 0 ? 1 : 0;
  });
  return prefix;
}

std::vector<BlockManager::Content> BlockManager::contents_of_prefix(
    std::span<const std::int32_t> tokens) const {
  std::vector<Content> contents;
  walk(tokens, kAnyLength, [&](BlockId block) { contents.push_back(at(block).position.content); });
  return contents;
}

bool BlockManager::allocate(SequenceId id, std::int64_t tokens) {
  Sequence& sequence = find_sequence(id);
  const std::int64_t more = blocks_for(tokens) - std::ssize(sequence.blocks);
  if (more > free_.size()) return false;
  for (std::int64_t i = 0; i < more; ++i) sequence.blocks.push_back(allocate_free_block());
  return true;
}

void BlockManager::cache_full_blocks(SequenceId id, std::span<const std::int32_t> tokens) {
  Sequence& sequence = find_sequence(id);
  const std::size_t full = tokens.size() / static_cast<std::size_t>(options_.block_size);
  NVLLM_CHECK(full <= sequence.blocks.size(), "sequence ", id, " has ", sequence.blocks.size(),
              " blocks, not ", full);
  if (!options_.prefix_caching || !sequence.shares) return;
  for (; sequence.committed < full; ++sequence.committed) {
    sequence.position = publish(sequence.blocks[sequence.committed], sequence.position,
                                block_of(tokens, sequence.committed));
  }
}

void BlockManager::release_first(SequenceId id, std::int64_t count) {
  Sequence& sequence = find_sequence(id);
  const bool commits = options_.prefix_caching && sequence.shares;
  const std::size_t end = std::min(static_cast<std::size_t>(std::max<std::int64_t>(count, 0)),
                                   commits ? sequence.committed : sequence.blocks.size());
  for (; sequence.released < end; ++sequence.released) {
    release(std::exchange(sequence.blocks[sequence.released], kNone));
  }
}

void BlockManager::stop_sharing(SequenceId id) {
  Sequence& sequence = find_sequence(id);
  NVLLM_CHECK_EQ(sequence.committed, 0u);
  sequence.shares = false;
}

void BlockManager::remove_sequence(SequenceId id) {
  // The last block is freed first, so that prefixes are evicted last.
  const Sequence sequence = std::move(find_sequence(id));
  for (std::size_t i = sequence.blocks.size(); i-- > sequence.released;) {
    release(sequence.blocks[i]);
  }
  sequences_.erase(id);
}

std::span<const BlockId> BlockManager::blocks_of(SequenceId id) const {
  return find_sequence(id).blocks;
}

std::int64_t BlockManager::released_of(SequenceId id) const {
  return static_cast<std::int64_t>(find_sequence(id).released);
}

BlockManager::Content BlockManager::content_of(SequenceId id, std::int64_t index) const {
  return at(find_sequence(id).blocks.at(static_cast<std::size_t>(index))).position.content;
}

std::int64_t BlockManager::ref_count(BlockId block) const {
  NVLLM_CHECK(block >= 0 && block < total_blocks(), "block ", block, " of ", total_blocks());
  return at(block).references;
}

void BlockManager::reset_prefix_cache() {
  for (BlockId block = 0; block < total_blocks(); ++block) {
    if (at(block).position.content != kNoContent) unpublish(block);
  }
  // Blocks after a forgotten one could not be found, and would only take space.
  for (auto& [id, sequence] : sequences_) sequence.shares = false;
}

void BlockManager::check_invariants() const {
  std::vector<std::int64_t> references(blocks_.size());
  for (const auto& [id, sequence] : sequences_) {
    NVLLM_CHECK_LE(sequence.committed, sequence.blocks.size());
    NVLLM_CHECK_LE(sequence.released, sequence.blocks.size());
    NVLLM_CHECK_EQ(std::ranges::count(sequence.blocks, kNone),
                   static_cast<std::ptrdiff_t>(sequence.released));
    Content before = kBeforeAll;
    if (sequence.released > 0 && sequence.released < sequence.blocks.size()) {
      before = at(sequence.blocks[sequence.released]).predecessor;
    }
    for (std::size_t i = sequence.released; i < sequence.blocks.size(); ++i) {
      const Block& block = at(sequence.blocks[i]);
      ++references[static_cast<std::size_t>(sequence.blocks[i])];
      const bool findable = sequence.shares && i < sequence.committed;
      NVLLM_CHECK_EQ(block.position.content != kNoContent, findable);
      if (findable)
        NVLLM_CHECK_EQ(block.predecessor, std::exchange(before, block.position.content));
    }
  }
  for (std::size_t i = 0; i < references.size(); ++i) {
    NVLLM_CHECK_EQ(blocks_[i].references, references[i]);
  }
  std::int64_t free = 0;
  bool with_tokens = false;
  BlockId before = kNone;
  for (BlockId i = free_.front(); i != kNone; before = i, i = free_.after(i)) {
    const Block& block = at(i);
    NVLLM_CHECK_EQ(block.references, 0);
    NVLLM_CHECK_EQ(free_.before(i), before);
    const bool holds = block.position.content != kNoContent;
    NVLLM_CHECK(holds || !with_tokens, "free block ", i, " waits behind one with tokens");
    with_tokens = holds;
    ++free;
  }
  NVLLM_CHECK_EQ(before, free_.back());
  NVLLM_CHECK_EQ(free, free_.size());
  NVLLM_CHECK_EQ(free, std::ranges::count(references, 0));

  std::unordered_map<Content, std::vector<BlockId>> holders;
  for (std::size_t index = 0; index < buckets_.size(); ++index) {
    for (BlockId i = buckets_[index]; i != kNone; i = at(i).same_bucket) {
      NVLLM_CHECK(at(i).position.content != kNoContent, "block ", i);
      NVLLM_CHECK_EQ(at(i).position.hash & (buckets_.size() - 1), index);
      holders[at(i).position.content].push_back(i);
    }
  }
  std::int64_t findable = 0;
  for (const auto& [content, which] : holders) {
    findable += std::ssize(which);
    for (const BlockId i : which) {
      NVLLM_CHECK(which.size() == 1 || at(i).references > 0, "free block ", i,
                  " holds what another one holds");
      NVLLM_CHECK(std::ranges::equal(tokens_of(i), tokens_of(which.front())));
    }
  }
  NVLLM_CHECK_EQ(findable, std::ranges::count_if(blocks_, [](const Block& block) {
                   return block.position.content != kNoContent;
                 }));
}

}  // namespace nvllm::kvcache
