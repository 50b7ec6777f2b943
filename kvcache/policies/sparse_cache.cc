#include "kvcache/policies/sparse_cache.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace nvllm::kvcache {
namespace {

std::size_t start_words(const SparseLimits& limits) {
  return static_cast<std::size_t>(limits.sequences + 1 + 2 * (limits.rows + 1));
}

}  // namespace

SparseCache::SparseCache(Backend& backend, Stream& stream, LayerwiseCache& cache,
                         PromptPolicy* prompts, std::optional<QuestLimits> quest,
                         const SparseLimits& limits)
    : SparseCache(backend, stream, static_cast<KvCache&>(cache), prompts, quest, limits) {
  if (!quest) return;
  NVLLM_CHECK(cache.decodes_on_host());
  layerwise_ = &cache;
  gathered_.emplace(backend, *quest_, quest->shape);
}

SparseCache::SparseCache(Backend& backend, Stream& stream, KvCache& cache, PromptPolicy* prompts,
                         std::optional<QuestLimits> quest, const SparseLimits& limits)
    : cache_(cache), prompts_(prompts), quest_limits_(quest), limits_(limits) {
  if (quest) quest_.emplace(backend, *quest);
  const std::size_t bytes = start_words(limits) * sizeof(std::int32_t);
  starts_ = backend.allocate(MemoryKind::device, bytes, "sparse attention");
  const Buffer staged = backend.allocate(MemoryKind::pinned, bytes, "sparse attention");
  auto* const words = static_cast<std::int32_t*>(staged.data());
  auto* const pairs = words + limits.sequences + 1;
  std::iota(words, pairs, 0);
  for (std::int64_t rows = 0; rows <= limits.rows; ++rows) {
    pairs[2 * rows] = 0;
    pairs[2 * rows + 1] = static_cast<std::int32_t>(rows);
  }
  backend.copy(starts_.data(), staged.data(), bytes, stream);
  stream.synchronize();
  auto* const there = static_cast<std::int32_t*>(starts_.data());
  one_row_starts_ = TensorView(there, DType::i32, {limits.sequences + 1});
  single_starts_ = TensorView(there + limits.sequences + 1, DType::i32, {limits.rows + 1, 2});
}

std::size_t SparseCache::bytes(const std::optional<QuestLimits>& quest, const SparseLimits& limits,
                               bool layerwise) {
  std::size_t bytes = start_words(limits) * sizeof(std::int32_t);
  if (quest) bytes += Quest::bytes(*quest);
  if (quest && layerwise) bytes += GatheredQuest::bytes(quest->shape);
  return bytes;
}

SparseCache::Kind SparseCache::kind_of(const Rows& rows) const {
  if (rows.rows == 1) return quest_ ? Kind::one_row : Kind::everything;
  const bool chosen = prompts_ != nullptr && rows.first + rows.rows >= limits_.min_tokens;
  return chosen ? Kind::chosen : Kind::everything;
}

StepPlan SparseCache::begin_step(const KvStep& step, Stream& stream) {
  sequences_.clear();
  decodes_ = true;
  for (const StepSequence& sequence : step.sequences) {
    sequences_.push_back({sequence.first, sequence.rows, sequence.later_rows});
    decodes_ &= sequence.rows == 1;
  }
  layer_ = -1;
  const StepPlan plan = cache_.begin_step(step, stream);
  if (layerwise_ != nullptr && layerwise_->on_host()) gathered_bytes_ += max_gathered(step);
  return plan;
}

// An upper bound: only the device knows which pages are selected.
std::uint64_t SparseCache::max_gathered(const KvStep& step) const {
  const BlockShape& shape = quest_limits_->shape;
  std::int64_t tokens = 0;
  for (const StepSequence& sequence : step.sequences) {
    tokens += std::min(sequence.length(), quest_limits_->budget);
  }
  return static_cast<std::uint64_t>(tokens) * shape.kv_bytes() /
         static_cast<std::uint64_t>(shape.block_size);
}

KvTraffic SparseCache::traffic() const {
  KvTraffic traffic = cache_.traffic();
  traffic.to_device += gathered_bytes_;
  return traffic;
}

// Splits the layer's next rows into runs.
void SparseCache::choose_runs(std::int64_t layer, std::int64_t rows) {
  if (layer != std::exchange(layer_, layer)) {
    next_sequence_ = 0;
    done_ = 0;
  }
  runs_.clear();
  std::int64_t row = 0, number = 0;
  for (; row < rows && next_sequence_ < sequences_.size(); ++number) {
    const Rows& sequence = sequences_[next_sequence_];
    const std::int64_t left = sequence.rows - done_, now = std::min(left, rows - row);
    const Rows own{sequence.first + done_, now, left - now + sequence.later_rows};
    const Kind kind = kind_of(own);
    // Sequences of one row run together; others one by one.
    const bool joins = own.rows == 1 && !runs_.empty() && runs_.back().kind == kind &&
                       runs_.back().rows == runs_.back().sequences;
    if (joins) {
      Run& run = runs_.back();
      ++run.sequences;
      ++run.rows;
      run.longest = std::max(run.longest, own.first + 1);
    } else {
      runs_.push_back(
          {kind, number, 1, row, own.rows, own.first, own.first + own.rows, own.later_rows});
    }
    row += own.rows;
    done_ += own.rows;
    if (done_ < sequence.rows) continue;
    ++next_sequence_;
    done_ = 0;
  }
}

void SparseCache::run_attention(std::int64_t layer, const kernels::Attention& args,
                                std::int64_t decode_sequences, Stream& stream) {
  kernels::Attention all = args;
  all.kv = cache_.store_view(layer, stream);
  all.kv.block_table = args.kv.block_table;
  if (layerwise_ != nullptr && layerwise_->on_host()) return attend_on_host(layer, args, stream);
  if (quest_) quest_->update_bounds(layer, all, stream);
  if (decodes_ && quest_) return quest_->run_attention(layer, all, stream);
  if (decodes_) return cache_.run_attention(layer, args, decode_sequences, stream);
  choose_runs(layer, args.q.shape[0]);
  const bool everything = std::all_of(runs_.begin(), runs_.end(),
                                      [](const Run& run) { return run.kind == Kind::everything; });
  if (everything) return cache_.run_attention(layer, args, decode_sequences, stream);
  for (const Run& run : runs_) attend_run(layer, run, all, stream);
}

// The bounds of a page cover all tokens stored in it, which are in host memory. Only the host knows
// the addresses of the blocks, so each sequence is a separate call. The batch may have padding
// after the sequences.
void SparseCache::attend_on_host(std::int64_t layer, const kernels::Attention& args,
                                 Stream& stream) {
  std::int64_t sequence = 0;
  for (const BlockId block : layerwise_->write_newest(layer, args.kv_length, stream)) {
    kernels::Attention one = args;
    one.kv = layerwise_->group_of(block, layer);
    one.kv.block_table = args.kv.block_table.rows(sequence, 1);
    one.kv_length = args.kv_length.rows(sequence, 1);
    one.query_start = one_row_starts_.rows(0, 2);
    ++sequence;
    quest_->update_bounds(layer, one, stream, layerwise_->numbers_in_groups());
  }
  if (args.q.elements() == 0) return;
  gathered_->run_attention(layer, args, args.query_start, layerwise_->host_blocks(layer), stream);
}

void SparseCache::attend_run(std::int64_t layer, const Run& run, const kernels::Attention& all,
                             Stream& stream) {
  const kernels::Attention args = part_of(all, run);
  if (run.kind == Kind::one_row) return quest_->run_attention(layer, args, stream);
  if (run.kind == Kind::everything) return kernels::attention(args, stream);
  if (args.q.elements() == 0) return;
  prompts_->run_attention(prompt_attention(args, run.first_position, run.later_rows), stream);
}

// The arguments for some of a call's sequences.
kernels::Attention SparseCache::part_of(const kernels::Attention& all, const Run& run) const {
  NVLLM_CHECK(run.rows <= limits_.rows && run.sequences <= limits_.sequences);
  kernels::Attention part = all;
  part.out = all.out.rows(run.first_row, run.rows);
  part.q = all.q.rows(run.first_row, run.rows);
  if (all.lse.data != nullptr) part.lse = all.lse.rows(run.first_row, run.rows);
  part.kv_length = all.kv_length.rows(run.first_sequence, run.sequences);
  if (all.visible.data != nullptr) {
    part.visible = all.visible.rows(run.first_sequence, run.sequences);
  }
  if (all.kv.block_table.data != nullptr) {
    part.kv.block_table = all.kv.block_table.rows(run.first_sequence, run.sequences);
  } else {
    part.kv.keys = all.kv.keys.rows(run.first_sequence, run.sequences);
    part.kv.values = all.kv.values.rows(run.first_sequence, run.sequences);
  }
  const bool one_row = run.rows == run.sequences;
  part.query_start =
      one_row ? one_row_starts_.rows(0, run.sequences + 1) : single_starts_.rows(run.rows, 1);
  if (!one_row) part.query_start = TensorView(part.query_start.data, DType::i32, {2});
  part.max_query_rows = one_row ? 1 : run.rows;
  part.max_kv_length = run.longest;
  return part;
}

}  // namespace nvllm::kvcache
