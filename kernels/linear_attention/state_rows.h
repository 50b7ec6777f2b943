// The assignment of a step's rows to sequences, and the state slot of each sequence.
#pragma once

#include <cstdint>

#include "device/tensor_view.h"
#include "kernels/common/arguments.h"

namespace nvllm::kernels {

// A sequence's rows are the newest of its tokens. If they include its first one, its state is zero,
// whatever memory holds; without rows the state does not change. A sequence without a slot is
// padding: its rows are zero.
struct StateRows {
  TensorView query_start;  // [sequences + 1], int32: the first row of each
  TensorView kv_length;    // [sequences], int32: tokens including these rows
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
