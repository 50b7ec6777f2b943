// Batch: the rows of one forward pass, the newest tokens of some sequences, one sequence after the other.
// All tensors are device memory, so that a captured graph reads other values in every replay.
#pragma once

#include <cstdint>

#include "device/tensor_view.h"

namespace nvllm::layers {

struct Batch {
  TensorView tokens;       // [rows], int32
  TensorView positions;    // [rows], int32: places in their sequences
  TensorView slots;        // [rows], int64: where keys and values go (kernels/kv_view.h)
  TensorView query_start;  // [sequences + 1], int32: the first row of each sequence
  TensorView kv_length;    // [sequences], int32: tokens of each, these rows included
  TensorView block_table;  // [sequences, blocks], int32; data == nullptr: contiguous
  // [any number], int32: the rows whose logits are wanted; data == nullptr: all, in order
  TensorView logit_rows;

  // Bounds that hold for every value that a captured graph will see.
  std::int64_t max_query_rows = 0;
  std::int64_t max_kv_length = 0;

  std::int64_t rows() const { return tokens.shape[0]; }
  std::int64_t logits() const { return logit_rows.data == nullptr ? rows() : logit_rows.shape[0]; }
};

}  // namespace nvllm::layers
