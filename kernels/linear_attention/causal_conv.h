// The causal depthwise convolution over the rows of each sequence, with SiLU.
#pragma once

#include "device/backend.h"
#include "device/tensor_view.h"
#include "kernels/linear_attention/state_rows.h"

namespace nvllm::kernels {

// With x[t] the row of token t, and 0 before the first:
//   out[t][c] = silu(sum over i < width of weight[c][i] * x[t - (width - 1) + i][c])
// in float32, starting at i = 0, rounded once. A sequence's state is the last width - 1 rows of x
// that it has seen.
struct CausalConv {
  TensorView out;     // [rows, channels], dense
  TensorView x;       // [rows, channels]; any row stride
  TensorView weight;  // [channels, width]
  TensorView state;   // [slots, width - 1, channels], oldest first
  StateRows rows;
};

// Max. width.
inline constexpr std::int64_t kMaxConvWidth = 8;

// Enqueues the operation. All tensors are of one type (float32, bfloat16 or float16) except those
// of `rows`; otherwise throws an Error that names the argument.
void causal_conv(const CausalConv& args, Stream& stream);
void check_causal_conv(const CausalConv& args);

}  // namespace nvllm::kernels
