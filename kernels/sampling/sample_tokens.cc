#include "kernels/sampling/sample_tokens.h"

#include "kernels/common/arguments.h"
#include "kernels/sampling/backends.h"
#include "kernels/sampling/operations.h"

namespace nvllm::kernels {
namespace {

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

}  // namespace nvllm::kernels
