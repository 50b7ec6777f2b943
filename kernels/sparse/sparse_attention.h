// Causal attention of a sequence's rows to chosen tokens: what sparse prefill computes.
#pragma once

#include "kernels/attention/attention.h"

namespace nvllm::kernels {

inline constexpr std::int64_t kSparseTile =
    128;  // rows that share their lists, and tokens of a tile

// As Attention, of one sequence, whose row r is its token first_position + r: it attends to those chosen
// tokens that do not come after it. One of two choices is given for each block i of rows, [128 i, 128 i + 128),
// and query head h, int32, in device memory.
//
// Tiles: tiles[i][h] has tile_counts[i][h] numbers, ascending; number j stands for the tokens
// [128 j, 128 j + 128).
//
// Ranges and columns: ranges[i][h] has range_counts[i][h] pairs of a begin and an end, and columns[i][h] has
// column_counts[i][h] tokens. Both ascend, and no token is named twice.
//
// Tokens that come after a block's last row may be named; they are not read.
struct SparseAttention {
  TensorView out;  // [rows, heads, head_dim], of q's type or float32
  TensorView q;    // [rows, heads, head_dim]; rows may lie apart (stride[0])
  KvView kv;  // of at least first_position + rows tokens of the sequence, its first one in the view
  TensorView lse;  // [rows, heads], float32; may be none
  std::int64_t group = 1;
  std::int64_t first_head = 0;
  float scale = 1.0f;
  std::int64_t first_position = 0;

  TensorView tile_counts;  // [ceil(rows / 128), heads]
  TensorView tiles;        // [ceil(rows / 128), heads, capacity]

  TensorView range_counts;   // [ceil(rows / 128), heads]
  TensorView ranges;         // [ceil(rows / 128), heads, capacity, 2]
  TensorView column_counts;  // [ceil(rows / 128), heads]
  TensorView columns;        // [ceil(rows / 128), heads, capacity]

  bool by_tiles() const { return tile_counts.data != nullptr; }
  std::int64_t row_blocks() const { return (q.shape[0] + kSparseTile - 1) / kSparseTile; }
  // Those of its arguments that it shares with Attention.
  Attention shared() const;
};

// Enqueues it. Types, sizes and strides as for Attention, lists dense; otherwise an Error that names the
// argument.
void sparse_attention(const SparseAttention& args, Stream& stream);

void check_sparse_attention(const SparseAttention& args);

// The plain definition, run at once by the caller.
void sparse_attention_reference(const SparseAttention& args);

}  // namespace nvllm::kernels
