// Which rows of a step belong to which sequence, and where each sequence keeps its state.
#pragma once

#include <cstdint>

#include "device/tensor_view.h"
#include "kernels/common/arguments.h"

namespace nvllm::kernels {

// A sequence's rows are the newest of its tokens. If they are its first ones, its state is zero,
// whatever is in memory; without rows it stays as it is. A sequence without a slot is padding: its
// rows are zero.
struct StateRows {
  TensorView query_start;  // [sequences + 1], int32: the first row of each
  TensorView kv_length;    // [sequences], int32: tokens of each, these rows included
  TensorView slots;        // [sequences], int32: of the state; negative: padding

  std::int64_t sequences() const { return slots.shape[0]; }
  std::int64_t begin(std::int64_t sequence) const {
    return query_start.as<std::int32_t>()[sequence];
  }
  std::int64_t end(std::int64_t sequence) const { return begin(sequence + 1); }
  std::int64_t slot(std::int64_t sequence) const { return slots.as<std::int32_t>()[sequence]; }
  bool starts(std::int64_t sequence) const {
    return kv_length.as<std::int32_t>()[sequence] == end(sequence) - begin(sequence);
  }
};

void check_state_rows(const StateRows& rows, const Arguments& check);

}  // namespace nvllm::kernels
