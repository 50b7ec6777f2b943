#include "runtime/scheduler/sequence_memory.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "runtime/scheduler/scheduler.h"

namespace nvllm::runtime {

SequenceMemory::SequenceMemory(const SchedulerLimits& limits)
    : device_({.blocks = limits.blocks,
               .block_size = limits.block_size,
               .prefix_caching = limits.prefix_caching}),
      resident_(limits.resident_blocks, limits.blocks),
      max_chunked_(limits.chunked_seqs),
      prefix_caching_(limits.prefix_caching),
      window_(limits.window),
      host_blocks_(limits.host_blocks) {
  // Nothing is allocated when a sequence is swapped. Taken from the end: the lowest first.
  free_host_.reserve(static_cast<std::size_t>(host_blocks_));
  for (std::int64_t block = host_blocks_; block-- > 0;)
    free_host_.push_back(static_cast<kvcache::BlockId>(block));
}

// A sequence that left its first blocks behind goes on without them.
bool SequenceMemory::looks_up(const Sequence& sequence) const {
  return prefix_caching_ && !sequence.wants_prompt_logprobs() && sequence.blocks_before_host == 0;
}

SequenceMemory::Fit SequenceMemory::fit(const Sequence& sequence, std::int64_t reserved) const {
  kvcache::BlockManager::Prefix prefix;
  if (looks_up(sequence)) prefix = device_.find_prefix(sequence.tokens);
  const std::int64_t needed =
      device_.blocks_for(sequence.known()) - device_.blocks_for(prefix.tokens);
  return {.enough = needed + prefix.free_blocks + reserved <= device_.free_blocks(),
          .computed = std::max(prefix.tokens, sequence.computed)};
}

bool SequenceMemory::can_be_chunked_or_resident(const Sequence& sequence) const {
  return chunked_ < max_chunked_ || resident_.has_room_for(device_.blocks_for(sequence.max_length));
}

void SequenceMemory::allocate(Sequence& sequence, StepMessage& message) {
  const std::int64_t cached =
      device_.add_sequence(sequence.id, sequence.tokens, looks_up(sequence));
  const bool grown = device_.allocate(sequence.id, sequence.known());
  NVLLM_CHECK(grown, "sequence ", sequence.id, " is allocated without room");
  sequence.capacity = device_.blocks_for(sequence.known()) * device_.block_size();
  sequence.committed = cached;
  append_to_message(sequence, 0, message);

  const auto blocks = device_.blocks_of(sequence.id);
  const std::int64_t max_blocks = device_.blocks_for(sequence.max_length);
  sequence.resident = resident_.reserve(blocks, max_blocks);
  sequence.residence = sequence.resident == 0            ? Residence::none
                       : sequence.resident == max_blocks ? Residence::all
                                                         : Residence::some;
  if (sequence.residence != Residence::all) ++chunked_;
  const std::int64_t left_behind = sequence.blocks_before_host;
  for (auto i = static_cast<std::size_t>(device_.blocks_for(cached));
       i < sequence.host_blocks.size(); ++i)
    message.swap_in.push_back(
        {.from = sequence.host_blocks[i], .to = blocks[i + static_cast<std::size_t>(left_behind)]});
  free_host_blocks(sequence);
  if (left_behind > 0) {
    device_.stop_sharing(sequence.id);
    device_.release_first(sequence.id, left_behind);
  }
  sequence.computed = std::max(sequence.computed, cached);
  commit(sequence);
}

bool SequenceMemory::grow(Sequence& sequence, std::int64_t tokens, StepMessage& message) {
  if (tokens <= sequence.capacity) return true;
  if (!device_.allocate(sequence.id, tokens)) return false;
  const std::int64_t first = sequence.capacity / device_.block_size();
  sequence.capacity = device_.blocks_for(tokens) * device_.block_size();
  append_to_message(sequence, first, message);
  const auto blocks = device_.blocks_of(sequence.id);
  const auto kept = std::min(static_cast<std::int64_t>(blocks.size()), sequence.resident);
  for (std::int64_t i = first; i < kept; ++i) resident_.add(blocks[static_cast<std::size_t>(i)]);
  return true;
}

void SequenceMemory::append_to_message(const Sequence& sequence, std::int64_t first_block,
                                       StepMessage& message) const {
  const auto blocks = device_.blocks_of(sequence.id);
  for (auto i = static_cast<std::size_t>(first_block); i < blocks.size(); ++i)
    message.blocks.push_back({.slot = sequence.slot, .block = blocks[i]});
}

void SequenceMemory::commit(Sequence& sequence) {
  const std::int64_t known = std::min(sequence.known(), sequence.computed);
  if (known < sequence.committed + device_.block_size()) return;
  device_.cache_full_blocks(sequence.id,
                            std::span(sequence.tokens).first(static_cast<std::size_t>(known)));
  sequence.committed = known / device_.block_size() * device_.block_size();
}

void SequenceMemory::free_unseen(const Sequence& sequence) {
  // Penalties look back at all tokens, which lie in the blocks, too (kvcache::KvCache::tokens()).
  if (window_ == 0 || sequence.rules.changes_logits()) return;
  const std::int64_t unseen = sequence.computed + 1 - window_;
  if (unseen > 0) device_.release_first(sequence.id, unseen / device_.block_size());
}

void SequenceMemory::free(Sequence& sequence) {
  if (sequence.residence != Residence::all) --chunked_;
  resident_.release(device_.blocks_of(sequence.id), sequence.resident);
  device_.remove_sequence(sequence.id);
  sequence.capacity = 0;
}

bool SequenceMemory::swap_out(Sequence& sequence, StepMessage& message) {
  const std::int64_t left_behind = device_.released_of(sequence.id);
  const auto blocks = device_.blocks_of(sequence.id)
                          .first(static_cast<std::size_t>(device_.blocks_for(sequence.computed)))
                          .subspan(static_cast<std::size_t>(left_behind));
  if (blocks.empty() || blocks.size() > free_host_.size()) return false;
  sequence.blocks_before_host = left_behind;
  for (const kvcache::BlockId block : blocks) {
    const kvcache::BlockId host = free_host_.back();
    free_host_.pop_back();
    sequence.host_blocks.push_back(host);
    message.swap_out.push_back({.from = block, .to = host});
  }
  free(sequence);
  return true;
}

void SequenceMemory::free_host_blocks(Sequence& sequence) {
  free_host_.insert(free_host_.end(), sequence.host_blocks.begin(), sequence.host_blocks.end());
  sequence.host_blocks.clear();
  sequence.blocks_before_host = 0;
}

void SequenceMemory::check_invariants(std::span<const Sequence* const> sequences) const {
  device_.check_invariants();
  std::vector<int> holders(static_cast<std::size_t>(host_blocks_), 0);
  const auto count = [&](const std::vector<kvcache::BlockId>& blocks) {
    for (const kvcache::BlockId block : blocks) ++holders.at(static_cast<std::size_t>(block));
  };
  count(free_host_);
  std::int64_t references = 0, expected = 0, promised = 0, chunked = 0;
  std::set<kvcache::BlockId> resident;
  for (const Sequence* sequence : sequences) {
    count(sequence->host_blocks);
    if (sequence->state == Sequence::State::waiting && !sequence->host_blocks.empty())
      NVLLM_CHECK_EQ(
          static_cast<std::int64_t>(sequence->host_blocks.size()) + sequence->blocks_before_host,
          device_.blocks_for(sequence->computed));
    if (sequence->state != Sequence::State::running) {
      NVLLM_CHECK_EQ(sequence->capacity, 0);
      continue;
    }
    NVLLM_CHECK(sequence->host_blocks.empty(), "sequence ", sequence->id);
    const auto blocks = device_.blocks_of(sequence->id);
    NVLLM_CHECK_EQ(static_cast<std::int64_t>(blocks.size()) * device_.block_size(),
                   sequence->capacity);
    NVLLM_CHECK_LE(sequence->computed, sequence->capacity);
    const std::int64_t released = device_.released_of(sequence->id);
    expected += static_cast<std::int64_t>(blocks.size()) - released;
    // No row that is still to be scheduled attends to what was freed.
    const std::int64_t unseen = std::max<std::int64_t>(sequence->computed + 1 - window_, 0);
    NVLLM_CHECK_LE(released * device_.block_size(), unseen);
    const auto own = std::min(static_cast<std::int64_t>(blocks.size()), sequence->resident);
    resident.insert(blocks.begin(), blocks.begin() + own);
    promised += sequence->resident - own;
    if (sequence->residence != Residence::all) ++chunked;
  }
  for (std::int64_t block = 0; block < device_.total_blocks(); ++block)
    references += device_.ref_count(static_cast<kvcache::BlockId>(block));
  NVLLM_CHECK_EQ(references, expected);
  NVLLM_CHECK_EQ(chunked, chunked_);
  NVLLM_CHECK_LE(chunked, max_chunked_);
  if (resident_.limited()) {
    NVLLM_CHECK_EQ(resident_.free(),
                   resident_.slots() - static_cast<std::int64_t>(resident.size()) - promised);
    NVLLM_CHECK_LE(0, resident_.free());
  }
  for (const int holder : holders) NVLLM_CHECK_EQ(holder, 1);
}

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

}  // namespace nvllm::runtime
