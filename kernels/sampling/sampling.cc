// The checks of the sampling operations, and the choice of a backend.
#include "kernels/sampling/sampling.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "kernels/common/arguments.h"
#include "kernels/sampling/backends.h"

namespace nvllm::kernels {
namespace {

void require_rows(const Arguments& check, const SamplingRows& args) {
  const std::int64_t rows = args.rows(), own = args.own();
  check.require(args.logits, "logits", DType::f32, {rows, own});
  if (own > 1 && rows > 0 && args.logits.stride[1] != 1) check.require_dense(args.logits, "logits");
  check.require_memory(args.logits, "logits");
  check.require_dense(args.slots, "slots", DType::i32, {rows});
  check.require_dense(args.positions, "positions", DType::i32, {rows});
  check.require_dense(args.params, "params", DType::u8,
                      {args.params.shape[0], static_cast<std::int64_t>(sizeof(SlotParams))});
  if (args.changed_logits.data == nullptr) return;
  check.require(args.changed_logits, "changed_logits", DType::f32, {rows, own});
  if (own > 1 && rows > 0 && args.changed_logits.stride[1] != 1) {
    check.require_dense(args.changed_logits, "changed_logits");
  }
}

void require_targets(const Arguments& check, const TensorView& targets, std::int64_t rows) {
  if (targets.data == nullptr) return;
  check.require_dense(targets, "targets", DType::i32, {rows});
}

void require_tokens(const Arguments& check, const TensorView& tokens, const TensorView& last_tokens,
                    std::int64_t rows) {
  check.require_dense(tokens, "tokens", DType::i32, {rows});
  check.require_dense(last_tokens, "last_tokens", DType::i32, {last_tokens.shape[0]});
}

}  // namespace

void check_apply_penalties(const ApplyPenalties& args) {
  constexpr Arguments check("apply_penalties");
  require_rows(check, args.rows);
  const std::int64_t slots = args.rows.params.shape[0];
  check.require_dense(args.lists, "lists", DType::i32, {slots, args.lists.shape[1]});
  const std::int64_t allowed = std::max(args.allowed.shape[1], (args.rows.own() + 31) / 32);
  check.require_dense(args.allowed, "allowed", DType::i32, {slots, allowed});
  check.require_dense(args.history, "history", DType::i32,
                      {args.history.shape[0], args.history.shape[1]});
  check.require(args.block_table, "block_table", DType::i32,
                {args.rows.rows(), args.block_table.shape[1]});
}

void apply_penalties(const ApplyPenalties& args, Stream& stream) {
  check_apply_penalties(args);
  if (args.rows.rows() == 0) return;
  NVLLM_ON_BACKEND(stream, apply_penalties(args, stream));
}

void check_top_k_top_p(const TopKTopP& args) {
  constexpr Arguments check("top_k_top_p");
  require_rows(check, args.rows);
  const std::int64_t rows = args.rows.rows(), parts = args.all_maxima.shape[0];
  check.require_dense(args.maxima, "maxima", DType::i32, {rows});
  check.require_dense(args.all_maxima, "all_maxima", DType::i32, {parts, rows});
  check.require_dense(args.histograms, "histograms", DType::i64, {rows, kTruncationBins});
  check.require_dense(args.all_histograms, "all_histograms", DType::i64,
                      {parts, rows, kTruncationBins});
  check.require_dense(args.state, "state", DType::u8,
                      {rows, static_cast<std::int64_t>(sizeof(TruncationState))});
  check.require_dense(args.thresholds, "thresholds", DType::f32, {rows});
}

void top_k_top_p(const TopKTopP& args, Stream& stream) {
  check_top_k_top_p(args);
  NVLLM_CHECK(args.all_maxima.shape[0] == 1, "top_k_top_p: ", args.all_maxima.shape[0], " parts");
  if (args.rows.rows() == 0) return;
#ifdef NVLLM_CUDA
  if (stream.kind() == DeviceKind::cuda && cuda::top_k_top_p_sm90(args, stream)) return;
#endif
  find_maximum(args, stream);
  for (const auto kind : {TruncationKind::top_k, TruncationKind::top_p}) {
    for (int round = 0; round < kTruncationRounds; ++round)
      count_truncation_round(args, kind, round, stream);
  }
}

void find_maximum(const TopKTopP& args, Stream& stream) {
  check_top_k_top_p(args);
  if (args.rows.rows() == 0) return;
  NVLLM_ON_BACKEND(stream, find_maximum(args, stream));
}

void begin_truncation(const TopKTopP& args, Stream& stream) {
  check_top_k_top_p(args);
  if (args.rows.rows() == 0) return;
  NVLLM_ON_BACKEND(stream, begin_truncation(args, stream));
}

void count_truncation_round(const TopKTopP& args, TruncationKind kind, int round, Stream& stream) {
  check_top_k_top_p(args);
  if (args.rows.rows() == 0) return;
  NVLLM_ON_BACKEND(stream, count_truncation_round(args, kind, round, stream));
}

void choose_truncation_round(const TopKTopP& args, TruncationKind kind, int round, Stream& stream) {
  check_top_k_top_p(args);
  if (args.rows.rows() == 0) return;
  NVLLM_ON_BACKEND(stream, choose_truncation_round(args, kind, round, stream));
}

void check_sample_tokens(const SampleTokens& args) {
  constexpr Arguments check("sample_tokens");
  require_rows(check, args.rows);
  const std::int64_t rows = args.rows.rows();
  if (args.thresholds.data != nullptr) {
    check.require_dense(args.thresholds, "thresholds", DType::f32, {rows});
  }
  require_targets(check, args.targets, rows);
  check.require_dense(args.scratch, "scratch", DType::i64, {sample_scratch_words(rows)});
  if (args.best.data != nullptr) {
    check.require_dense(args.best, "best", DType::i64, {rows});
  } else {
    require_tokens(check, args.tokens, args.last_tokens, rows);
  }
}

void sample_tokens(const SampleTokens& args, Stream& stream) {
  check_sample_tokens(args);
  if (args.rows.rows() == 0) return;
  NVLLM_ON_BACKEND(stream, sample_tokens(args, stream));
}

void check_reduce_samples(const ReduceSamples& args) {
  constexpr Arguments check("reduce_samples");
  const std::int64_t parts = args.bests.shape[0], rows = args.bests.shape[1];
  check.require_dense(args.bests, "bests", DType::i64, {parts, rows});
  check.require_dense(args.slots, "slots", DType::i32, {rows});
  require_targets(check, args.targets, rows);
  require_tokens(check, args.tokens, args.last_tokens, rows);
}

void reduce_samples(const ReduceSamples& args, Stream& stream) {
  check_reduce_samples(args);
  if (args.bests.shape[1] == 0) return;
  NVLLM_ON_BACKEND(stream, reduce_samples(args, stream));
}

void check_log_probabilities(const LogProbabilities& args) {
  constexpr Arguments check("log_probabilities");
  require_rows(check, args.rows);
  const std::int64_t rows = args.rows.rows(), parts = args.parts();
  const std::int64_t alternatives = args.alternatives(), words = logprob_record_words(alternatives);
  if (alternatives > kMaxAlternatives) {
    fail("log_probabilities: ", alternatives, " alternatives; at most ", kMaxAlternatives,
         " can be asked for");
  }
  check.require_dense(args.tokens, "tokens", DType::i32, {rows});
  check.require_dense(args.records, "records", DType::i32, {rows, words});
  check.require_dense(args.all_records, "all_records", DType::i32, {parts, rows, words});
  check.require_dense(args.higher, "higher", DType::i32, {rows});
  check.require_dense(args.all_higher, "all_higher", DType::i32, {parts, rows});
  check.require_dense(args.logprob, "logprob", DType::f32, {rows});
  check.require_dense(args.rank, "rank", DType::i32, {rows});
  check.require_dense(args.top_ids, "top_ids", DType::i32, {rows, alternatives});
  check.require_dense(args.top_logprobs, "top_logprobs", DType::f32, {rows, alternatives});
}

void summarize_logits(const LogProbabilities& args, Stream& stream) {
  check_log_probabilities(args);
  if (args.rows.rows() == 0) return;
  NVLLM_ON_BACKEND(stream, summarize_logits(args, stream));
}

void log_probabilities(const LogProbabilities& args, Stream& stream) {
  check_log_probabilities(args);
  if (args.rows.rows() == 0) return;
  NVLLM_ON_BACKEND(stream, log_probabilities(args, stream));
}

void rank_tokens(const LogProbabilities& args, Stream& stream) {
  check_log_probabilities(args);
  if (args.rows.rows() == 0) return;
  NVLLM_ON_BACKEND(stream, rank_tokens(args, stream));
}

}  // namespace nvllm::kernels
