// The experts of one row, when a single sequence decodes: the equivalent of route(), two grouped
// GEMMs and combine_experts(), in two kernels instead of five.
#pragma once

#include "device/backend.h"
#include "device/tensor_view.h"
#include "kernels/gemm/gemm.h"
#include "kernels/pointwise/elementwise.h"

namespace nvllm::kernels {

// out = [residual +] the weighted sum of the outputs for x of the k experts with the largest logits
//       [+ sigmoid(shared_gate) * shared]
//
// with the roundings of the separate operations. `down` may sum in another order.
struct SingleTokenMoe {
  TensorView out;     // [1, columns]
  TensorView x;       // [1, columns]: the experts' input or, with norm_weight, the norm's input
  TensorView logits;  // [1, experts], float32
  // All experts, concatenated: [experts * 2 * inner, columns], per expert gate rows, then up rows,
  // and [experts * columns, inner].
  GemmWeight gate_up, down;
  std::int64_t k = 0;
  bool renormalize = false;  // Route::renormalize
  Activation activation = Activation::silu;
  float limit = 0;         // GatedActivation::limit
  TensorView activated{};  // [k, inner]: the activation, passed from gate_up to down
  TensorView norm_weight{};
  float epsilon = 1e-6f;
  TensorView residual{}, shared{}, shared_gate{};  // as in CombineExperts
};

// Whether the backend has kernels for it: GPUs do, for 16-bit floats and weights of their type, fp8
// or mxfp4.
bool takes_single_token(DeviceKind device, const SingleTokenMoe& args);

// Throws an Error that names the argument that does not fit.
void single_token_moe(const SingleTokenMoe& args, Stream& stream);

}  // namespace nvllm::kernels
