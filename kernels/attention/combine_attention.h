// Attention to some tokens from attention to parts of them, by their log-sum-exps.
#pragma once

#include <array>

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

inline constexpr int kMaxAttentionParts = 8;

// What attention to disjoint parts of the tokens gave becomes what attention to all of them gives:
//   out[r][h] = sum_i exp(parts[i].lse[r][h] - lse[r][h]) parts[i].out[r][h],
//   lse[r][h] = log(sum_i exp(parts[i].lse[r][h]))
// in float32 and in the order of the parts, so that no bit depends on when they came to be. A part with an
// lse of -infinity counts nothing, whatever its out is; with no other part the result is 0, its lse
// -infinity. One part alone is a change of type.
//
// Results may take the place of a part of the same type: so accumulators in float32 grow part by part, and
// the last merge gives the model's type.
struct CombineAttention {
  struct Part {
    TensorView out;  // [rows, heads, head_dim]: float32, bfloat16 or float16
    TensorView lse;  // [rows, heads], float32
  };

  TensorView out;  // as a part's
  TensorView lse;  // [rows, heads], float32; may be none
  std::array<Part, kMaxAttentionParts> parts{};
  int count = 0;  // parts that there are, at least 1
};

// Enqueues it. All tensors are dense and begin at multiples of 16 bytes, head_dim is a multiple of 8;
// otherwise an Error that names the argument.
void combine_attention(const CombineAttention& args, Stream& stream);

void check_combine_attention(const CombineAttention& args);

// The plain definition, run at once by the caller.
void combine_attention_reference(const CombineAttention& args);

}  // namespace nvllm::kernels
