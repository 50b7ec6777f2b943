// The experts of one row, as a step that decodes a single sequence has it: what route(), two
// grouped GEMMs and combine_experts() make of a row's logits, in two kernels in place of five.
#pragma once

#include "device/backend.h"
#include "device/tensor_view.h"
#include "kernels/gemm/gemm.h"
#include "kernels/pointwise/activation.h"

namespace nvllm::kernels {

// out = [residual +] the weighted sum of what the k experts with the largest logits make of x
//       [+ sigmoid(shared_gate) * shared]
//
// with the roundings of the operations themselves. Sums of `down` may be taken in another order.
struct OneRowExperts {
  TensorView out;     // [1, columns]
  TensorView x;       // [1, columns]: what experts read or, with norm_weight, what is normed first
  TensorView logits;  // [1, experts], float32
  // Of all experts, one after the other: [experts * 2 * inner, columns], gates first, and
  // [experts * columns, inner].
  GemmWeight gate_up, down;
  std::int64_t k = 0;
  bool renormalize = false;  // Route::renormalize
  Activation activation = Activation::silu;
  float limit = 0;         // GatedActivation::limit
  TensorView activated{};  // [k, inner]: what gate_up leaves to down
  TensorView norm_weight{};
  float epsilon = 1e-6f;
  TensorView residual{}, shared{}, shared_gate{};  // as in CombineExperts
};

// Whether this backend has kernels for it: GPUs, for 16-bit floats and weights of their type, fp8
// or mxfp4.
bool takes_one_row(DeviceKind device, const OneRowExperts& args);

// Enqueues it. Throws an Error that names the argument that does not fit.
void one_row_experts(const OneRowExperts& args, Stream& stream);

}  // namespace nvllm::kernels
