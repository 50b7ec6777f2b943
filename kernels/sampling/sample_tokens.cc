#include "kernels/sampling/sample_tokens.h"

#include <algorithm>

#include "kernels/common/arguments.h"
#include "kernels/sampling/backends.h"
#include "kernels/sampling/operations.h"

namespace nvllm::kernels {
namespace {

std::uint64_t best_of_row(const SamplingRowsView& rows, std::int64_t row, float threshold) {
  const SlotParams& params = rows.params[rows.slots[row]];
  const float* logits = rows.sampled_logits(row, params.flags);
  const RandomKeys noise = noise_keys(params.seed, rows.positions[row]);
  std::uint64_t best = 0;
  for (std::int64_t i = 0; i < rows.own; ++i) {
    const std::uint32_t id = rows.first_id + static_cast<std::uint32_t>(i);
    float score = logits[i];
    if (params.inverse_temperature != 0) {
      if (!(score >= threshold)) continue;
      score = fused(score, params.inverse_temperature, gumbel(noise.bits(id)));
    }
    best = std::max(best, candidate(score, id));
  }
  return best;
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

void check_sample_tokens(const SampleTokens& args) {
  constexpr Arguments check("sample_tokens");
  check_sampling_rows(args.rows, check.operation());
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

void sample_tokens_reference(const SampleTokens& args) {
  check_sample_tokens(args);
  const SamplingRowsView rows(args.rows);
  const SampledTokens sampled(args);
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const std::int32_t slot = rows.slots[row];
    const float threshold =
        args.thresholds.data != nullptr ? args.thresholds.as<float>()[row] : kMinusInfinity;
    sampled.set(row, slot, slot < 0 ? 0 : best_of_row(rows, row, threshold));
  }
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

void reduce_samples_reference(const ReduceSamples& args) {
  check_reduce_samples(args);
  const std::int64_t parts = args.bests.shape[0], rows = args.bests.shape[1];
  const SampledTokens sampled(args);
  for (std::int64_t row = 0; row < rows; ++row) {
    std::uint64_t best = 0;
    for (std::int64_t part = 0; part < parts; ++part) {
      best = std::max(best, args.bests.as<std::uint64_t>()[part * rows + row]);
    }
    sampled.set(row, args.slots.as<std::int32_t>()[row], best);
  }
}

}  // namespace nvllm::kernels
