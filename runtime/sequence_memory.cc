#include "runtime/sequence_memory.h"

#include <algorithm>
#include <set>

#include "base/check.h"

namespace nvllm::runtime {

SequenceMemory::SequenceMemory(const SchedulerLimits& limits)
    : device_({.blocks = limits.blocks,
               .block_size = limits.block_size,
               .prefix_caching = limits.prefix_caching}),
      resident_(limits.resident_blocks, limits.blocks),
      most_chunked_(limits.chunked_seqs),
      look_up_(limits.prefix_caching),
      host_blocks_(limits.host_blocks) {
  // Nothing is allocated when a sequence is swapped. Taken from the end: the lowest first.
  free_host_.reserve(static_cast<std::size_t>(host_blocks_));
  for (std::int64_t block = host_blocks_; block-- > 0;)
    free_host_.push_back(static_cast<kvcache::BlockId>(block));
}

bool SequenceMemory::holds(std::int64_t tokens) const {
  return device_.blocks_for(tokens) <= device_.total_blocks();
}

std::int64_t SequenceMemory::free_host_blocks() const {
  return static_cast<std::int64_t>(free_host_.size());
}

SequenceMemory::Room SequenceMemory::room_for(const Sequence& sequence,
                                              std::int64_t spare_blocks) const {
  kvcache::BlockManager::Prefix prefix;
  if (look_up_ && !sequence.scores_prompt()) prefix = device_.find_prefix(sequence.tokens);
  const std::int64_t needed =
      device_.blocks_for(sequence.known()) - device_.blocks_for(prefix.tokens);
  return {.enough = needed + prefix.free_blocks + spare_blocks <= device_.free_blocks(),
          .computed = std::max(prefix.tokens, sequence.computed)};
}

bool SequenceMemory::place_for(const Sequence& sequence) const {
  return chunked_ < most_chunked_ || resident_.has_room_for(device_.blocks_for(sequence.limit));
}

void SequenceMemory::enter(Sequence& sequence, StepMessage& message) {
  const std::int64_t cached =
      device_.add_sequence(sequence.id, sequence.tokens, look_up_ && !sequence.scores_prompt());
  const bool grown = device_.allocate(sequence.id, sequence.known());
  NVLLM_CHECK(grown, "sequence ", sequence.id, " entered without room");
  sequence.capacity = device_.blocks_for(sequence.known()) * device_.block_size();
  sequence.committed = cached;
  tell(sequence, 0, message);

  const auto blocks = device_.blocks_of(sequence.id);
  const std::int64_t most = device_.blocks_for(sequence.limit);
  sequence.resident = resident_.enter(blocks, most);
  sequence.residence = sequence.resident == 0      ? Residence::none
                       : sequence.resident == most ? Residence::all
                                                   : Residence::some;
  if (sequence.residence != Residence::all) ++chunked_;
  for (auto i = static_cast<std::size_t>(device_.blocks_for(cached));
       i < sequence.host_blocks.size(); ++i)
    message.swap_in.push_back({.from = sequence.host_blocks[i], .to = blocks[i]});
  drop_host_blocks(sequence);
  sequence.computed = std::max(sequence.computed, cached);
  commit(sequence);
}

bool SequenceMemory::grow(Sequence& sequence, std::int64_t tokens, StepMessage& message) {
  if (tokens <= sequence.capacity) return true;
  if (!device_.allocate(sequence.id, tokens)) return false;
  const std::int64_t first = sequence.capacity / device_.block_size();
  sequence.capacity = device_.blocks_for(tokens) * device_.block_size();
  tell(sequence, first, message);
  const auto blocks = device_.blocks_of(sequence.id);
  const auto kept = std::min(static_cast<std::int64_t>(blocks.size()), sequence.resident);
  for (std::int64_t i = first; i < kept; ++i) resident_.add(blocks[static_cast<std::size_t>(i)]);
  return true;
}

void SequenceMemory::tell(Sequence& sequence, std::int64_t first_block,
                          StepMessage& message) const {
  const auto blocks = device_.blocks_of(sequence.id);
  for (auto i = static_cast<std::size_t>(first_block); i < blocks.size(); ++i)
    message.blocks.push_back({.slot = sequence.slot, .block = blocks[i]});
}

void SequenceMemory::commit(Sequence& sequence) {
  const std::int64_t sure = std::min(sequence.known(), sequence.computed);
  if (sure < sequence.committed + device_.block_size()) return;
  device_.cache_full_blocks(sequence.id, std::span(sequence.tokens).first(static_cast<std::size_t>(sure)));
  sequence.committed = sure / device_.block_size() * device_.block_size();
}

void SequenceMemory::leave(Sequence& sequence) {
  if (sequence.residence != Residence::all) --chunked_;
  resident_.leave(device_.blocks_of(sequence.id), sequence.resident);
  device_.remove_sequence(sequence.id);
  sequence.capacity = 0;
}

bool SequenceMemory::leave_to_host(Sequence& sequence, StepMessage& message) {
  const auto blocks = device_.blocks_of(sequence.id)
                          .first(static_cast<std::size_t>(device_.blocks_for(sequence.computed)));
  if (blocks.empty() || blocks.size() > free_host_.size()) return false;
  for (const kvcache::BlockId block : blocks) {
    const kvcache::BlockId host = free_host_.back();
    free_host_.pop_back();
    sequence.host_blocks.push_back(host);
    message.swap_out.push_back({.from = block, .to = host});
  }
  leave(sequence);
  return true;
}

void SequenceMemory::drop_host_blocks(Sequence& sequence) {
  free_host_.insert(free_host_.end(), sequence.host_blocks.begin(), sequence.host_blocks.end());
  sequence.host_blocks.clear();
}

void SequenceMemory::check_invariants(std::span<const Sequence* const> sequences) const {
  device_.check_invariants();
  std::vector<int> holders(static_cast<std::size_t>(host_blocks_), 0);
  const auto count = [&](const std::vector<kvcache::BlockId>& blocks) {
    for (const kvcache::BlockId block : blocks) ++holders.at(static_cast<std::size_t>(block));
  };
  count(free_host_);
  std::int64_t references = 0, expected = 0, promised = 0, chunked = 0;
  std::set<kvcache::BlockId> kept;
  for (const Sequence* sequence : sequences) {
    count(sequence->host_blocks);
    if (sequence->place == Sequence::Place::waiting && !sequence->host_blocks.empty())
      NVLLM_CHECK_EQ(static_cast<std::int64_t>(sequence->host_blocks.size()),
                     device_.blocks_for(sequence->computed));
    if (sequence->place != Sequence::Place::running) {
      NVLLM_CHECK_EQ(sequence->capacity, 0);
      continue;
    }
    NVLLM_CHECK(sequence->host_blocks.empty(), "sequence ", sequence->id);
    const auto blocks = device_.blocks_of(sequence->id);
    NVLLM_CHECK_EQ(static_cast<std::int64_t>(blocks.size()) * device_.block_size(),
                   sequence->capacity);
    NVLLM_CHECK_LE(sequence->computed, sequence->capacity);
    expected += static_cast<std::int64_t>(blocks.size());
    const auto own = std::min(static_cast<std::int64_t>(blocks.size()), sequence->resident);
    kept.insert(blocks.begin(), blocks.begin() + own);
    promised += sequence->resident - own;
    if (sequence->residence != Residence::all) ++chunked;
  }
  for (std::int64_t block = 0; block < device_.total_blocks(); ++block)
    references += device_.ref_count(static_cast<kvcache::BlockId>(block));
  NVLLM_CHECK_EQ(references, expected);
  NVLLM_CHECK_EQ(chunked, chunked_);
  NVLLM_CHECK_LE(chunked, most_chunked_);
  if (resident_.shared()) {
    NVLLM_CHECK_EQ(resident_.free(),
                   resident_.places() - static_cast<std::int64_t>(kept.size()) - promised);
    NVLLM_CHECK_LE(0, resident_.free());
  }
  for (const int holder : holders) NVLLM_CHECK_EQ(holder, 1);
}

}  // namespace nvllm::runtime
