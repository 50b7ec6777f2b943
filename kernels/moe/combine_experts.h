// The last step of a mixture of experts: each row's weighted sum of its experts' outputs.
#pragma once

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

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

// Throws an Error that names the argument that does not fit.
void combine_experts(const CombineExperts& args, Stream& stream);
void check_combine_experts(const CombineExperts& args);

}  // namespace nvllm::kernels
