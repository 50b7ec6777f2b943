// Batch: the rows of one forward pass, the newest tokens of some sequences, one sequence after the other.
// All tensors are device memory, so that a captured graph reads other values in every replay.
#pragma once

#include <cstdint>
#include <span>

#include "device/tensor_view.h"

namespace nvllm::layers {

// Some of a batch's rows, one after the other. The first sequence may have begun before them, the last may go
// on after them.
struct BatchPart {
  std::int64_t first_row = 0, rows = 0;
  std::int64_t first_sequence = 0, sequences = 0;
  TensorView query_start{};  // [sequences + 1], int32: among these rows
  TensorView kv_length{};    // [sequences], int32: tokens of each, up to the last of these rows
  std::int64_t max_query_rows = 0, max_kv_length = 0;
};

struct Batch {
  TensorView tokens;       // [rows], int32
  TensorView positions;    // [rows], int32: places in their sequences
  TensorView slots;        // [rows], int64: where keys and values go (kernels/attention/kv_view.h)
  TensorView query_start;  // [sequences + 1], int32: the first row of each sequence
  TensorView kv_length;    // [sequences], int32: tokens of each, these rows included
  TensorView block_table;  // [sequences, blocks], int32; data == nullptr: contiguous
  // [any number], int32: the rows whose logits are wanted; data == nullptr: all, in order
  TensorView logit_rows;

  // Bounds that hold for every value that a captured graph will see.
  std::int64_t max_query_rows = 0;
  std::int64_t max_kv_length = 0;

  // Parts that the layers take the rows in, each layer all of them before the next layer; empty: all rows at
  // once. Whoever made them keeps them until the pass is enqueued.
  std::span<const BatchPart> parts{};

  std::int64_t rows() const { return tokens.shape[0]; }
  std::int64_t logits() const { return logit_rows.data == nullptr ? rows() : logit_rows.shape[0]; }
};

}  // namespace nvllm::layers
