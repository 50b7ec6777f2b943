#include "runtime/scheduler/sequence_memory.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/math.h"
#include "runtime/scheduler/scheduler.h"

namespace nvllm::runtime {
namespace {

// Allocates a host block for each of these blocks, and adds the copies.
void copy_out(std::span<const kvcache::BlockId> blocks, HostBlockPool& free_host,
              std::vector<kvcache::BlockId>& host, std::vector<kvcache::BlockCopy>& copies) {
  for (const kvcache::BlockId block : blocks) {
    host.push_back(free_host.allocate());
    copies.push_back({.from = block, .to = host.back()});
  }
}

// Linear attention cannot resume from keys and values alone.
bool caches_prefixes(const SchedulerLimits& limits) {
  return limits.prefix_caching && (!limits.states.kept || limits.states.snapshots > 0);
}

}  // namespace

SequenceMemory::SequenceMemory(const SchedulerLimits& limits)
    : device_({.blocks = limits.blocks,
               .block_size = limits.block_size,
               .prefix_caching = caches_prefixes(limits),
               .names_evicted = limits.states.snapshots > 0}),
      resident_(limits.resident_blocks, limits.blocks),
      max_chunked_(limits.chunked_seqs),
      prefix_caching_(caches_prefixes(limits)),
      window_(limits.window),
      host_blocks_(limits.host_blocks),
      free_host_(limits.host_blocks),
      host_window_blocks_(limits.window_group.host_blocks),
      free_host_window_(limits.window_group.host_blocks),
      keeps_states_(limits.states.kept),
      snapshot_tokens_(
          round_up(std::max<std::int64_t>(limits.states.snapshot_tokens, 1), limits.block_size)),
      host_states_(limits.states.host),
      free_host_states_(limits.states.host) {
  const SchedulerLimits::WindowGroup& group = limits.window_group;
  if (keeps_states_) {
    NVLLM_CHECK(limits.window == 0 && group.window == 0, "windows beside linear attention");
    if (prefix_caching_) snapshots_.emplace(limits.states.snapshots);
  }
  if (group.window == 0) return;
  NVLLM_CHECK(limits.window == 0, "a window of all layers, ", limits.window, ", beside a group");
  windows_.emplace(kvcache::WindowBlocksOptions{.blocks = group.blocks,
                                                .block_size = limits.block_size,
                                                .window = group.window,
                                                .chunk_rows = limits.max_num_batched_tokens});
}

// A sequence that already freed its first blocks cannot use the prefix cache.
bool SequenceMemory::looks_up(const Sequence& sequence) const {
  return prefix_caching_ && !sequence.wants_prompt_logprobs() && sequence.blocks_before_host == 0;
}

// Looks up a prefix in the cache: after it the window group must have what the next row attends to,
// and linear attention a snapshot. A swapped sequence has its own of both at its position.
SequenceMemory::Prefix SequenceMemory::find_prefix(const Sequence& sequence) const {
  if (!looks_up(sequence)) return {};
  Prefix prefix{.tokens = kvcache::BlockManager::kAnyLength};
  if (!windows_ && !snapshots_) return prefix;
  if (!sequence.host_blocks.empty()) {
    prefix.tokens = sequence.computed;
  } else if (snapshots_) {
    prefix = find_snapshot(sequence);
  } else {
    prefix.tokens = windows_->find_prefix(device_.contents_of_prefix(sequence.tokens));
  }
  return prefix;
}

SequenceMemory::Prefix SequenceMemory::find_snapshot(const Sequence& sequence) const {
  const std::vector<kvcache::BlockManager::Content> contents =
      device_.contents_of_prefix(sequence.tokens);
  Prefix prefix{.shared = std::ssize(contents) * device_.block_size(),
                .shared_is_kept = !contents.empty() && snapshots_->knows(contents.back())};
  for (std::int64_t blocks = std::ssize(contents); blocks > 0; --blocks) {
    prefix.snapshot = snapshots_->find(contents[static_cast<std::size_t>(blocks - 1)]);
    if (prefix.snapshot == kvcache::kNoSnapshot) continue;
    prefix.tokens = blocks * device_.block_size();
    break;
  }
  return prefix;
}

SequenceMemory::Fit SequenceMemory::fit(const Sequence& sequence, std::int64_t reserved) const {
  kvcache::BlockManager::Prefix prefix;
  if (looks_up(sequence))
    prefix = device_.find_prefix(sequence.tokens, find_prefix(sequence).tokens);
  const std::int64_t needed =
      device_.blocks_for(sequence.known()) - device_.blocks_for(prefix.tokens);
  return {.enough = needed + prefix.free_blocks + reserved <= device_.free_blocks(),
          .computed = std::max(prefix.tokens, sequence.computed)};
}

bool SequenceMemory::can_be_chunked_or_resident(const Sequence& sequence) const {
  return chunked_ < max_chunked_ || resident_.has_room_for(device_.blocks_for(sequence.max_length));
}

void SequenceMemory::allocate(Sequence& sequence, StepMessage& message) {
  const Prefix prefix = find_prefix(sequence);
  const std::int64_t cached =
      device_.add_sequence(sequence.id, sequence.tokens, looks_up(sequence), prefix.tokens);
  const bool grown = device_.allocate(sequence.id, sequence.known());
  NVLLM_CHECK(grown, "sequence ", sequence.id, " is allocated without room");
  sequence.capacity = device_.blocks_for(sequence.known()) * device_.block_size();
  sequence.committed = cached;
  append_to_message(sequence, 0, message);
  if (windows_) allocate_window(sequence, cached, message);

  const auto blocks = device_.blocks_of(sequence.id);
  const std::int64_t max_blocks = device_.blocks_for(sequence.max_length);
  sequence.resident = resident_.reserve(blocks, max_blocks);
  sequence.residence = sequence.resident == 0            ? Residence::none
                       : sequence.resident == max_blocks ? Residence::all
                                                         : Residence::some;
  if (sequence.residence != Residence::all) ++chunked_;
  const std::int64_t left_behind = sequence.blocks_before_host;
  for (auto i = static_cast<std::size_t>(device_.blocks_for(cached));
       i < sequence.host_blocks.size(); ++i) {
    const kvcache::BlockId to = blocks[i + static_cast<std::size_t>(left_behind)];
    // An earlier sequence in this message may have freed the block again, because of its window.
    if (window_ > 0) {
      std::erase_if(message.swap_in, [&](const kvcache::BlockCopy& copy) { return copy.to == to; });
    }
    message.swap_in.push_back({.from = sequence.host_blocks[i], .to = to});
  }
  sequence.computed = std::max(sequence.computed, cached);
  if (keeps_states_) allocate_state(sequence, prefix, message);
  free_host_blocks(sequence);
  if (left_behind > 0) {
    device_.stop_sharing(sequence.id);
    device_.release_first(sequence.id, left_behind);
  }
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

void SequenceMemory::allocate_window(Sequence& sequence, std::int64_t cached,
                                     StepMessage& message) {
  if (sequence.host_blocks.empty()) {
    std::vector<kvcache::BlockManager::Content> prefix;
    for (std::int64_t i = 0; i < device_.blocks_for(cached); ++i)
      prefix.push_back(device_.content_of(sequence.id, i));
    windows_->add_sequence(sequence.id, sequence.max_length, prefix);
  } else {
    windows_->add_computed_sequence(sequence.id, sequence.max_length, sequence.computed);
    const auto blocks = windows_->blocks_of(sequence.id);
    const auto first = static_cast<std::size_t>(windows_->released_of(sequence.id));
    NVLLM_CHECK_EQ(blocks.size() - first, sequence.host_window_blocks.size());
    for (std::size_t i = first; i < blocks.size(); ++i)
      message.windows.swap_in.push_back(
          {.from = sequence.host_window_blocks[i - first], .to = blocks[i]});
  }
  append_window_to_message(sequence, 0, message);
}

std::int64_t SequenceMemory::rows_in_window(const Sequence& sequence) const {
  if (!windows_) return std::numeric_limits<std::int64_t>::max();
  const std::int64_t rows = windows_->max_tokens(sequence.id) - sequence.computed;
  NVLLM_CHECK(rows > 0, "sequence ", sequence.id, " was promised blocks for its next row");
  return rows;
}

void SequenceMemory::grow_window(const Sequence& sequence, std::int64_t tokens,
                                 StepMessage& message) {
  if (!windows_) return;
  const std::int64_t before = std::ssize(windows_->blocks_of(sequence.id));
  windows_->allocate(sequence.id, tokens);
  append_window_to_message(sequence, before, message);
}

void SequenceMemory::append_window_to_message(const Sequence& sequence, std::int64_t first_block,
                                              StepMessage& message) const {
  for (const kvcache::BlockId block :
       windows_->blocks_of(sequence.id).subspan(static_cast<std::size_t>(first_block)))
    message.windows.blocks.push_back({.slot = sequence.slot, .block = std::max(block, 0)});
}

// The states come from the same place as the computed tokens; without any they start as zeros.
void SequenceMemory::allocate_state(Sequence& sequence, const Prefix& prefix,
                                    StepMessage& message) {
  const auto slot = static_cast<std::int32_t>(sequence.slot);
  if (!sequence.host_state.empty()) {
    message.states.swap_in.push_back({.from = sequence.host_state.front(), .to = slot});
  } else if (sequence.computed > 0) {
    NVLLM_CHECK(prefix.snapshot != kvcache::kNoSnapshot && prefix.tokens == sequence.computed,
                "sequence ", sequence.id, " begins behind ", sequence.computed, " tokens");
    snapshots_->use(prefix.snapshot);
    message.states.restore.push_back({.from = prefix.snapshot, .to = slot});
  }
  if (snapshots_) plan_snapshots(sequence, prefix);
}

void SequenceMemory::plan_snapshots(Sequence& sequence, const Prefix& prefix) const {
  const std::int64_t block = device_.block_size();
  std::int64_t last = sequence.computed / block * block;
  sequence.next_snapshot = sequence.end_snapshot = 0;
  if (prefix.shared - last >= snapshot_tokens_) {
    last = prefix.shared;
    if (!prefix.shared_is_kept) sequence.next_snapshot = last;
  }
  const std::int64_t end = (sequence.known() - 1) / block * block;
  if (end - last >= snapshot_tokens_) last = sequence.end_snapshot = end;
  if (sequence.next_snapshot == 0) {
    sequence.next_snapshot =
        sequence.end_snapshot > 0 ? sequence.end_snapshot : last + 2 * snapshot_tokens_;
  }
}

std::int64_t SequenceMemory::rows_to_snapshot(const Sequence& sequence, std::int64_t rows) const {
  const std::int64_t left = sequence.next_snapshot - sequence.computed;
  return left > 0 ? std::min(rows, left) : rows;
}

void SequenceMemory::take_snapshot(Sequence& sequence, StepMessage& message) {
  const std::int64_t tokens = sequence.computed;
  if (!snapshots_ || tokens != sequence.next_snapshot) return;
  sequence.next_snapshot =
      sequence.end_snapshot > tokens ? sequence.end_snapshot : tokens + 2 * snapshot_tokens_;
  if (sequence.length() >= sequence.max_length) return;  // it ends before the token is known
  if (tokens <= sequence.committed) {
    const auto content = device_.content_of(sequence.id, tokens / device_.block_size() - 1);
    if (snapshots_->knows(content)) return;
  }
  snapshots_->forget(device_.take_evicted());
  const kvcache::SnapshotId place = snapshots_->allocate();
  if (place == kvcache::kNoSnapshot) return;
  message.states.save.push_back({.from = static_cast<std::int32_t>(sequence.slot), .to = place});
  sequence.snapshots_due.push_back({.tokens = tokens, .place = place});
  publish_snapshots(sequence);
}

// Publishes snapshots whose tokens are in the prefix cache now. The newest one of generated tokens
// replaces the previous one.
void SequenceMemory::publish_snapshots(Sequence& sequence) {
  std::erase_if(sequence.snapshots_due, [&](const Sequence::Snapshot& due) {
    if (due.tokens > sequence.committed) return false;
    const auto content = device_.content_of(sequence.id, due.tokens / device_.block_size() - 1);
    snapshots_->publish(due.place, content);
    if (due.tokens >= sequence.prompt_length && content != sequence.answer_snapshot)
      snapshots_->drop_unused(std::exchange(sequence.answer_snapshot, content));
    return true;
  });
}

void SequenceMemory::commit(Sequence& sequence) {
  const std::int64_t known = std::min(sequence.known(), sequence.computed);
  if (known < sequence.committed + device_.block_size()) return;
  device_.cache_full_blocks(sequence.id,
                            std::span(sequence.tokens).first(static_cast<std::size_t>(known)));
  sequence.committed = known / device_.block_size() * device_.block_size();
  if (snapshots_) publish_snapshots(sequence);
  if (!windows_) return;
  windows_->cache_blocks(sequence.id, known / device_.block_size(), [&](std::int64_t block) {
    return device_.content_of(sequence.id, block);
  });
}

void SequenceMemory::free_unseen(const Sequence& sequence) {
  // Penalties need all tokens, which are also stored in the blocks (kvcache::KvCache::tokens()).
  if (window_ == 0 || sequence.rules.changes_logits()) return;
  const std::int64_t unseen = sequence.computed + 1 - window_;
  if (unseen > 0) device_.release_first(sequence.id, unseen / device_.block_size());
}

void SequenceMemory::free(Sequence& sequence) {
  if (sequence.residence != Residence::all) --chunked_;
  resident_.release(device_.blocks_of(sequence.id), sequence.resident);
  device_.remove_sequence(sequence.id);
  if (windows_) windows_->remove_sequence(sequence.id);
  for (const Sequence::Snapshot& due : sequence.snapshots_due) snapshots_->free(due.place);
  sequence.snapshots_due.clear();
  sequence.capacity = 0;
}

bool SequenceMemory::swap_out(Sequence& sequence, StepMessage& message) {
  const std::int64_t left_behind = device_.released_of(sequence.id);
  const auto blocks = device_.blocks_of(sequence.id)
                          .first(static_cast<std::size_t>(device_.blocks_for(sequence.computed)))
                          .subspan(static_cast<std::size_t>(left_behind));
  if (blocks.empty() || blocks.size() > free_host_.count()) return false;
  if (keeps_states_ && free_host_states_.count() == 0) return false;
  if (windows_) {
    windows_->release_unseen(sequence.id, sequence.computed);
    const auto in_window =
        windows_->blocks_of(sequence.id)
            .subspan(static_cast<std::size_t>(windows_->released_of(sequence.id)));
    if (in_window.size() > free_host_window_.count()) return false;
    copy_out(in_window, free_host_window_, sequence.host_window_blocks, message.windows.swap_out);
  }
  if (keeps_states_) {
    sequence.host_state.push_back(free_host_states_.allocate());
    message.states.swap_out.push_back(
        {.from = static_cast<std::int32_t>(sequence.slot), .to = sequence.host_state.front()});
  }
  sequence.blocks_before_host = left_behind;
  copy_out(blocks, free_host_, sequence.host_blocks, message.swap_out);
  free(sequence);
  return true;
}

void SequenceMemory::free_host_blocks(Sequence& sequence) {
  free_host_.free(sequence.host_blocks);
  free_host_window_.free(sequence.host_window_blocks);
  free_host_states_.free(sequence.host_state);
  sequence.blocks_before_host = 0;
}

void SequenceMemory::end_message() {
  free_host_.end_message();
  free_host_window_.end_message();
  free_host_states_.end_message();
  if (!snapshots_) return;
  snapshots_->forget(device_.take_evicted());
  snapshots_->end_message();
}

void SequenceMemory::check_invariants(std::span<const Sequence* const> sequences) const {
  device_.check_invariants();
  std::vector<int> holders(static_cast<std::size_t>(host_blocks_), 0);
  const auto count = [&](const std::vector<kvcache::BlockId>& blocks) {
    for (const kvcache::BlockId block : blocks) ++holders.at(static_cast<std::size_t>(block));
  };
  count(free_host_.free_blocks());
  count(free_host_.freed());
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
    // No row that is still to be scheduled attends to freed blocks.
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
  if (windows_) check_window_invariants(sequences);
  if (keeps_states_) check_state_invariants(sequences);
}

void SequenceMemory::check_state_invariants(std::span<const Sequence* const> sequences) const {
  std::vector<int> holders(static_cast<std::size_t>(host_states_), 0);
  const auto count = [&](const std::vector<kvcache::BlockId>& places) {
    for (const kvcache::BlockId place : places) ++holders.at(static_cast<std::size_t>(place));
  };
  count(free_host_states_.free_blocks());
  count(free_host_states_.freed());
  std::int64_t due = 0;
  for (const Sequence* sequence : sequences) {
    count(sequence->host_state);
    NVLLM_CHECK_EQ(sequence->host_state.empty(), sequence->host_blocks.empty());
    NVLLM_CHECK(sequence->state == Sequence::State::running || sequence->snapshots_due.empty(),
                "sequence ", sequence->id);
    due += std::ssize(sequence->snapshots_due);
  }
  for (const int holder : holders) NVLLM_CHECK_EQ(holder, 1);
  if (!snapshots_) return;
  snapshots_->check_invariants();
  NVLLM_CHECK_EQ(snapshots_->held(), due);
}

void SequenceMemory::check_window_invariants(std::span<const Sequence* const> sequences) const {
  windows_->check_invariants();
  std::vector<int> holders(static_cast<std::size_t>(host_window_blocks_), 0);
  const auto count = [&](const std::vector<kvcache::BlockId>& blocks) {
    for (const kvcache::BlockId block : blocks) ++holders.at(static_cast<std::size_t>(block));
  };
  count(free_host_window_.free_blocks());
  count(free_host_window_.freed());
  for (const Sequence* sequence : sequences) {
    count(sequence->host_window_blocks);
    const std::int64_t computed = sequence->computed;
    if (sequence->state == Sequence::State::waiting && !sequence->host_blocks.empty())
      NVLLM_CHECK_EQ(std::ssize(sequence->host_window_blocks),
                     device_.blocks_for(computed) - windows_->first_needed(computed));
    if (sequence->state != Sequence::State::running) continue;
    NVLLM_CHECK(sequence->host_window_blocks.empty(), "sequence ", sequence->id);
    NVLLM_CHECK_EQ(std::ssize(windows_->blocks_of(sequence->id)), device_.blocks_for(computed));
    NVLLM_CHECK_LE(windows_->released_of(sequence->id), windows_->first_needed(computed));
  }
  for (const int holder : holders) NVLLM_CHECK_EQ(holder, 1);
}

}  // namespace nvllm::runtime
