// Sampling: returns the token of each row with the highest logit or, with a temperature, with the
// highest logit / temperature + Gumbel noise, which is a sample from softmax(logit / temperature).
#pragma once

#include "device/backend.h"
#include "kernels/sampling/sampling_params.h"

namespace nvllm::kernels {

// The token of a row whose logits are all NaN.
inline constexpr std::int32_t kNoToken = -1;

// Rows without a slot sample no token: their token is their target.
struct SampleTokens {
  SamplingRows rows;
  // [rows], float32: with a temperature, lower logits are excluded; data == nullptr: none are.
  TensorView thresholds{};
  TensorView targets;  // [rows], int32, or data == nullptr: -1 everywhere
  // [sample_scratch_words(rows)], int64, zero before the first call and after each call.
  TensorView scratch;

  // If rows are whole, the results are tokens.
  TensorView tokens{};       // [rows], int32
  TensorView last_tokens{};  // [slots], int32: receives each sampled token at its slot
  // If rows are parts of the vocabulary, the result is each part's best candidate, the input of
  // reduce_samples(). data == nullptr: rows are whole.
  TensorView best{};  // [rows], int64 (bits of candidate())
};

// The words of scratch for `rows` rows.
constexpr std::int64_t sample_scratch_words(std::int64_t rows) {
  return 2 * rows;
}

// Ties go to the lowest id. NaN never wins; a row with only NaN yields kNoToken, and its slot token
// 0, which a step that is already enqueued may read. Throws an Error for arguments that do not fit.
void sample_tokens(const SampleTokens& args, Stream& stream);
void check_sample_tokens(const SampleTokens& args);

// Computes the tokens from the best candidates of all parts of the vocabulary.
struct ReduceSamples {
  TensorView bests;        // [parts, rows], int64
  TensorView slots;        // [rows], int32
  TensorView targets;      // [rows], int32, or data == nullptr
  TensorView tokens;       // [rows], int32
  TensorView last_tokens;  // [slots], int32
};
void reduce_samples(const ReduceSamples& args, Stream& stream);
void check_reduce_samples(const ReduceSamples& args);

}  // namespace nvllm::kernels
