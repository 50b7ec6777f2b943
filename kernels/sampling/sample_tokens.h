// Drawing tokens: of each row the highest logit, or the highest of logit / temperature + Gumbel noise,
// which is to draw from softmax(logit / temperature).
#pragma once

#include "device/backend.h"
#include "kernels/sampling/sampling_rules.h"

namespace nvllm::kernels {

// Rows without a slot draw nothing; their token is their target.
struct SampleTokens {
  SamplingRows rows;
  TensorView
      thresholds{};    // [rows], float32: with a temperature, only logits not below are looked at;
                       // data == nullptr: all
  TensorView targets;  // [rows], int32, or data == nullptr: -1 everywhere
  TensorView scratch;  // [sample_scratch_words(rows)], int64, zero before the first call and left so

  // The rows are whole: the tokens are known at once.
  TensorView tokens{};       // [rows], int32
  TensorView last_tokens{};  // [slots], int32: gets each drawn token at its slot
  // Or else the rows are parts: what each part's best is, for reduce_samples(). data == nullptr: whole.
  TensorView best{};  // [rows], int64 (bits of scored())
};

// How many words of scratch a call of so many rows takes.
constexpr std::int64_t sample_scratch_words(std::int64_t rows) {
  return 2 * rows;
}

// Enqueues it. Of equal scores the lowest id wins. NaN wins nothing; a row of nothing else gives token 0.
// An Error for arguments that do not fit.
void sample_tokens(const SampleTokens& args, Stream& stream);
void check_sample_tokens(const SampleTokens& args);
// The plain definition, run at once by the caller.
void sample_tokens_reference(const SampleTokens& args);

// The parts' bests make the tokens.
struct ReduceSamples {
  TensorView bests;        // [parts, rows], int64
  TensorView slots;        // [rows], int32
  TensorView targets;      // [rows], int32, or data == nullptr
  TensorView tokens;       // [rows], int32
  TensorView last_tokens;  // [slots], int32
};
void reduce_samples(const ReduceSamples& args, Stream& stream);
void check_reduce_samples(const ReduceSamples& args);
void reduce_samples_reference(const ReduceSamples& args);

}  // namespace nvllm::kernels
