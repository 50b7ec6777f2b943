// The output gate of attention.
#pragma once

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

// x[r][c] = x[r][c] * sigmoid(gate[r][c]), in float32, rounded once.
struct SigmoidGate {
  TensorView x;     // [rows, columns], dense
  TensorView gate;  // [rows, columns], dense
};

// Both are of one type (float32, bfloat16 or float16); otherwise throws an Error that names the
// argument.
void sigmoid_gate(const SigmoidGate& args, Stream& stream);
void check_sigmoid_gate(const SigmoidGate& args);

}  // namespace nvllm::kernels
