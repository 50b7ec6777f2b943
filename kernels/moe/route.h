// The router of a mixture of experts: which experts each row goes to, and the rows in the order of
// their experts.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

inline constexpr std::int64_t kMaxExperts = 1024;

// weights[r] = the k largest of softmax(logits[r]), the largest first, of equals the lower expert
// first; `renormalize` divides them by their sum; then each is multiplied by its expert's `scale`,
// if there are any. A NaN among a row's logits makes all its weights
// NaN (and its experts any).
//
// Each row is then there k times, once for each of its experts. These entries are sorted by expert,
// and those of an expert by row: expert e has the entries [expert_start[e], expert_start[e + 1]),
// entry n is of row source_rows[n], and entries[r][j] is that of row r and its expert j.
struct Route {
  TensorView logits;        // [rows, experts], float32, dense
  TensorView weights;       // [rows, k], float32, dense
  TensorView expert_start;  // [experts + 1], int32
  TensorView source_rows;   // [rows * k], int32
  TensorView entries;       // [rows, k], int32
  bool renormalize = false;
  TensorView scales{};  // [experts], of any type of float; data == nullptr: none
};

// Enqueues it. Throws an Error that names the argument that does not fit.
void route(const Route& args, Stream& stream);
void check_route(const Route& args);

}  // namespace nvllm::kernels
