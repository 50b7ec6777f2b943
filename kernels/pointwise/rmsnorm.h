// RMSNorm, with and without a preceding residual sum.
#pragma once

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

// With residual:    residual[r] = round(residual[r] + x[r]), and that row is normalised;
// without:          x[r] is normalised.
//   out[r][i] = round(row[i] / sqrt(mean_i(row[i]^2) + epsilon) * (weight_offset + weight[i]))
// Sums are taken in float32; "round" is to the tensors' type. out may be x.
struct RmsNorm {
  TensorView out;       // [rows, columns]
  TensorView x;         // [rows, columns]
  TensorView residual;  // [rows, columns], updated in place; data == nullptr: none
  TensorView weight;    // [columns]
  float epsilon = 1e-6f;
  float weight_offset = 0;  // 1: models whose files store the weight minus 1
};

// All tensors are dense and of one type (float32, bfloat16 or float16), with any number of rows
// (including 0) and 1 to kRmsNormMaxColumns columns; otherwise throws an Error that names the
// argument.
void rms_norm(const RmsNorm& args, Stream& stream);

// The checks of rms_norm(), for kernels that fuse it.
void check_rms_norm(const RmsNorm& args);

inline constexpr std::int64_t kRmsNormMaxColumns = 65536;

}  // namespace nvllm::kernels
