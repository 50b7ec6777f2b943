// The end of a mixture of experts: each row's weighted sum of what its experts made of it.
#pragma once

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

// out[r] = [residual[r] +] round(sum over j of weights[r][j] * experts[entries[r][j]]
//                                [+ sigmoid(shared_gate[r]) * shared[r]])
//
// The sum is in float32, in the order of j, so that a row's does not depend on other rows; it is
// rounded to out's type, and again when a residual is added. All of one type (float32, bfloat16 or
// float16) but for the weights, and dense; out may be float32 whatever that type is, where there is
// no residual. Any number of rows and columns.
//
// A rank that has whole experts adds up theirs alone: entries from own_start's first number on, up
// to its last.
struct CombineExperts {
  TensorView out;         // [rows, columns]
  TensorView experts;     // [rows * k, columns], or more rows: of each entry
  TensorView weights;     // [rows, k], float32
  TensorView entries;     // [rows, k], int32: rows of `experts` (Route::entries)
  TensorView residual{};  // [rows, columns], may be out; data == nullptr: none
  // [own experts + 1], int32: a part of Route::expert_start; data == nullptr: all are own
  TensorView own_start{};
  // Of an expert that all rows go through: what it made, [rows, columns], and the logits
  // of its gate, [rows, 1], float32; data == nullptr: there is none.
  TensorView shared{}, shared_gate{};
};

// Enqueues it. Throws an Error that names the argument that does not fit.
void combine_experts(const CombineExperts& args, Stream& stream);
void check_combine_experts(const CombineExperts& args);

}  // namespace nvllm::kernels
