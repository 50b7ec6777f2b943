// What a mixture of experts computes beside its GEMMs: route() before them, combine_experts() after
// them, and single_token_moe(), which does all of it for one row. Each throws an Error that names
// the argument that does not fit.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"
#include "kernels/gemm/gemm.h"
#include "kernels/pointwise/elementwise.h"

namespace nvllm::kernels {

inline constexpr std::int64_t kMaxExperts = 1024;

// --- the router: assigns rows to experts, and sorts the rows by expert

// weights[r] = the k largest of softmax(logits[r]) in descending order, ties by ascending expert;
// `renormalize` divides them by their sum; then each is multiplied by its expert's `scale`, if any.
// A NaN among a row's logits makes all its weights NaN (and its experts arbitrary).
//
// Each row then has k entries, one per expert. They are sorted by expert, then by row: expert e has
// entries [expert_start[e], expert_start[e + 1]), entry n belongs to row source_rows[n], and
// entries[r][j] is that of row r and its expert j.
struct Route {
  TensorView logits;        // [rows, experts], float32, dense
  TensorView weights;       // [rows, k], float32, dense
  TensorView expert_start;  // [experts + 1], int32
  TensorView source_rows;   // [rows * k], int32
  TensorView entries;       // [rows, k], int32
  bool renormalize = false;
  TensorView scales{};  // [experts], of any type of float; data == nullptr: none
};

void route(const Route& args, Stream& stream);
void check_route(const Route& args);

// --- the last step: each row's weighted sum of its experts' outputs

// out[r] = [residual[r] +] round(sum over j of weights[r][j] * experts[entries[r][j]]
//                                [+ sigmoid(shared_gate[r]) * shared[r]])
//
// The sum is in float32, in the order of j, so that a row's result does not depend on other rows;
// it is rounded to out's type, and again when a residual is added. All tensors are dense and,
// except for the weights, of one type (float32, bfloat16 or float16); out may be float32 with any
// type if there is no residual. Any number of rows and columns.
//
// A rank with whole experts sums only its own: entries [own_start[0], own_start[last]).
struct CombineExperts {
  TensorView out;         // [rows, columns]
  TensorView experts;     // [at least rows * k, columns]: experts' outputs by entry
  TensorView weights;     // [rows, k], float32
  TensorView entries;     // [rows, k], int32: rows of `experts` (Route::entries)
  TensorView residual{};  // [rows, columns], may alias out; data == nullptr: none
  // [own experts + 1], int32: a slice of Route::expert_start; data == nullptr: all are own
  TensorView own_start{};
  // The output of a shared expert, [rows, columns], and its gate logits, [rows, 1], float32; data
  // == nullptr: none.
  TensorView shared{}, shared_gate{};
};

void combine_experts(const CombineExperts& args, Stream& stream);
void check_combine_experts(const CombineExperts& args);

// --- the experts of one row

// When a single sequence decodes, this is the equivalent of route(), two grouped GEMMs and
// combine_experts(), in two kernels instead of five.
//
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

void single_token_moe(const SingleTokenMoe& args, Stream& stream);

}  // namespace nvllm::kernels
