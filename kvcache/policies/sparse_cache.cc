#include "kvcache/policies/sparse_cache.h"

#include <cstring>
#include <numeric>

#include "base/check.h"
#include "kvcache/policies/prompt_segments.h"

namespace nvllm::kvcache {
namespace {

std::size_t start_words(const SparseLimits& limits) {
  return static_cast<std::size_t>(limits.sequences + 1 + 2 * (limits.rows + 1));
}

}  // namespace

SparseCache::SparseCache(Backend& backend, Stream& stream, ViewCache& views, PromptPolicy* prompts,
                         std::optional<QuestLimits> quest, const SparseLimits& limits)
    : views_(views), prompts_(prompts), limits_(limits) {
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

std::size_t SparseCache::bytes(const std::optional<QuestLimits>& quest,
                               const SparseLimits& limits) {
  return start_words(limits) * sizeof(std::int32_t) + (quest ? Quest::bytes(*quest) : 0);
}

SparseCache::Kind SparseCache::kind_of(const StepSequence& sequence) const {
  if (sequence.rows == 1) return quest_ ? Kind::one_row : Kind::everything;
  const bool chosen = prompts_ != nullptr && sequence.length() >= limits_.least_tokens;
  return chosen ? Kind::chosen : Kind::everything;
}

StepPlan SparseCache::begin_step(const KvStep& step, Stream& stream) {
  runs_.clear();
  std::int64_t row = 0, number = 0;
  bool decodes = true, all_everything = true;
  for (const StepSequence& sequence : step.sequences) {
    const Kind kind = kind_of(sequence);
    decodes &= sequence.rows == 1;
    all_everything &= kind == Kind::everything;
    // Sequences of one row go together, however many they are; others are attended one by one.
    const bool joins = sequence.rows == 1 && !runs_.empty() && runs_.back().kind == kind &&
                       runs_.back().rows == runs_.back().sequences;
    if (joins) {
      Run& run = runs_.back();
      ++run.sequences;
      ++run.rows;
      run.longest = std::max(run.longest, sequence.length());
    } else {
      runs_.push_back({kind, number, 1, row, sequence.rows, sequence.first, sequence.length()});
    }
    row += sequence.rows;
    ++number;
  }
  // A step of one row per sequence is one call, which counts padding in: a graph may keep it.
  whole_ = decodes && quest_ ? Kind::one_row : Kind::everything;
  if (decodes || all_everything) runs_.clear();
  return views_.begin_step(step, stream);
}

void SparseCache::attend(std::int64_t layer, const kernels::Attention& args, Stream& stream) {
  kernels::Attention all = args;
  all.kv = views_.store_view(layer, stream);
  all.kv.block_table = args.kv.block_table;
  if (quest_) quest_->stored(layer, all, stream);
  if (runs_.empty()) {
    if (whole_ == Kind::one_row) return quest_->attend(layer, all, stream);
    return views_.attend(layer, args, stream);
  }
  for (const Run& run : runs_) attend_run(layer, run, all, stream);
}

void SparseCache::attend_run(std::int64_t layer, const Run& run, const kernels::Attention& all,
                             Stream& stream) {
  const kernels::Attention args = part_of(all, run);
  if (run.kind == Kind::one_row) return quest_->attend(layer, args, stream);
  if (run.kind == Kind::everything) return kernels::attention(args, stream);
  PromptAttention prompt;
  prompt.out = args.out;
  prompt.rows.q = args.q;
  prompt.rows.kv = args.kv;
  prompt.rows.first_position = run.first_position;
  prompt.rows.group = args.group;
  prompt.rows.first_head = args.first_head;
  prompt.rows.scale = args.scale;
  if (args.q.elements() > 0) prompts_->attend(prompt, stream);
}

// The arguments of some of the step's sequences, as if they were all.
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
