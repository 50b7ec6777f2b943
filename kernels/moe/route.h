// The router of a mixture of experts: assigns rows to experts, and sorts the rows by expert.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

inline constexpr std::int64_t kMaxExperts = 1024;

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

// Throws an Error that names the argument that does not fit.
void route(const Route& args, Stream& stream);
void check_route(const Route& args);

}  // namespace nvllm::kernels
