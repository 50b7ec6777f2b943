// Combines partial attention results, each over some of the tokens, by their log-sum-exps.
#pragma once

#include <array>

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

inline constexpr int kMaxAttentionParts = 8;

// Attention over disjoint sets of tokens becomes attention over their union:
//   out[r][h] = sum_i exp(parts[i].lse[r][h] - lse[r][h]) parts[i].out[r][h],
//   lse[r][h] = log(sum_i exp(parts[i].lse[r][h]))
// It is computed in float32 and in the order of the parts, so no bit depends on the order in which
// they were computed. A part with an lse of -infinity has no weight, whatever its out is; if all
// parts are such, the result is 0 and its lse -infinity. A single part is only converted to the
// type of out.
//
// out and lse may be those of one of the parts, if the types are the same: an accumulator in
// float32 thus grows part by part, and the last call converts it to the model's type.
struct CombineAttention {
  struct Part {
    TensorView out;  // [rows, heads, head_dim]: float32, bfloat16 or float16
    TensorView lse;  // [rows, heads], float32
  };

  TensorView out;  // of the shape of a part
  TensorView lse;  // [rows, heads], float32; may be none
  std::array<Part, kMaxAttentionParts> parts{};
  int count = 0;  // number of parts, at least 1
};

// Enqueues it. All tensors are dense and begin at multiples of 16 bytes, and head_dim is a multiple
// of 8. Otherwise it throws an Error that names the argument.
void combine_attention(const CombineAttention& args, Stream& stream);
void check_combine_attention(const CombineAttention& args);

}  // namespace nvllm::kernels
