// Capped logits.
#pragma once

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

// x[r][c] = cap * tanh(x[r][c] / cap), in float32, within 2^-21 of cap.
struct SoftCap {
  TensorView x;   // [rows, columns], float32; any row stride
  float cap = 0;  // positive
};

// Throws an Error that names the argument that does not fit.
void soft_cap(const SoftCap& args, Stream& stream);
void check_soft_cap(const SoftCap& args);

}  // namespace nvllm::kernels
