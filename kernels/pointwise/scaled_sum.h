// A scaled sum of two tensors.
#pragma once

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

// out = (a + b) * scale * factor[0], in float32, rounded once.
struct ScaledSum {
  TensorView out;  // [rows, columns]; may alias a or b
  TensorView a;    // [rows, columns]
  TensorView b{};  // [rows, columns]; data == nullptr: zeros
  float scale = 1;
  TensorView factor{};  // [1]; data == nullptr: 1
};

// All tensors are of one type (float32, bfloat16 or float16), with any row stride; otherwise throws
// an Error that names the argument.
void scaled_sum(const ScaledSum& args, Stream& stream);
void check_scaled_sum(const ScaledSum& args);

}  // namespace nvllm::kernels
