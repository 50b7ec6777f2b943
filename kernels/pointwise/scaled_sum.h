// A scaled sum of two tensors.
#pragma once

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

// out = (a + b) * scale * factor[0], in float32, rounded once.
struct ScaledSum {
  TensorView out;  // [rows, columns]; may be a or b
  TensorView a;    // likewise
  TensorView b{};  // likewise; data == nullptr: zeros
  float scale = 1;
  TensorView factor{};  // [1]; data == nullptr: 1
};

// Enqueues it. All of one type (float32, bfloat16 or float16), and their rows may lie apart;
// otherwise an Error that names the argument.
void scaled_sum(const ScaledSum& args, Stream& stream);
void check_scaled_sum(const ScaledSum& args);

}  // namespace nvllm::kernels
