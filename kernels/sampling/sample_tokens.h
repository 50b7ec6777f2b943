// Sampling: of each row the token with the highest logit or, with a temperature, the one with the
// highest logit / temperature + Gumbel noise, which is a sample from softmax(logit / temperature).
#pragma once

#include "device/backend.h"
#include "kernels/sampling/sampling_params.h"

namespace nvllm::kernels {

// The token of a row whose logits are all NaN.
inline constexpr std::int32_t kNoToken = -1;

// Samples no token for rows without a slot: their token is their target.
struct SampleTokens {
  SamplingRows rows;
  // [rows], float32: with a temperature, only logits not below are looked at; data == nullptr: all.
  TensorView thresholds{};
  TensorView targets;  // [rows], int32, or data == nullptr: -1 everywhere
  // [sample_scratch_words(rows)], int64, zero before the first call and left so.
  TensorView scratch;

  // If the rows are whole, the results are tokens.
  TensorView tokens{};       // [rows], int32
  TensorView last_tokens{};  // [slots], int32: gets each sampled token at its slot
  // If the rows are parts of the vocabulary, the result is each part's best candidate, which
  // reduce_samples() reads. data == nullptr: whole.
  TensorView best{};  // [rows], int64 (bits of candidate())
};

// The words of scratch that a call of so many rows takes.
constexpr std::int64_t sample_scratch_words(std::int64_t rows) {
  return 2 * rows;
}

// Enqueues it. Of equals the lowest id wins. NaN wins nothing; a row of nothing but NaN gives
// kNoToken, and its slot token 0, which a step that is enqueued already may read. Throws an Error
// for arguments that do not fit.
void sample_tokens(const SampleTokens& args, Stream& stream);
void check_sample_tokens(const SampleTokens& args);

// Makes the tokens from the best candidates of all parts of the vocabulary.
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
