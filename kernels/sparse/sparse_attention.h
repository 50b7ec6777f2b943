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
  Attention attention_args() const;
};

// Enqueues it. Types, sizes and strides as for Attention, lists dense; otherwise an Error that names the
// argument.
void sparse_attention(const SparseAttention& args, Stream& stream);

void check_sparse_attention(const SparseAttention& args);

// The plain definition, run at once by the caller.
void sparse_attention_reference(const SparseAttention& args);

// As Attention, with one row per sequence, which attends to the tokens of chosen pages: page p of a sequence is its
// tokens [p page_tokens, (p + 1) page_tokens), as far as it has them. The query heads of a KV head share their
// pages: pages[s][g] has page_counts[s][g] numbers, ascending, where g = (first_head + h) / group. Pages
// beyond kv_length may be named; they are not read.
struct PageAttention {
  TensorView out;  // [sequences, heads, head_dim], of q's type or float32
  TensorView q;    // [sequences, heads, head_dim]; rows may lie apart (stride[0])
  KvView kv;
  TensorView kv_length;  // [sequences], int32; 0: a row of padding, which gives 0
  TensorView lse;        // [sequences, heads], float32; may be none
  std::int64_t group = 1;
  std::int64_t first_head = 0;
  float scale = 1.0f;

  std::int64_t page_tokens = 0;  // a power of two, at least 8
  TensorView page_counts;        // [sequences, KV heads of the heads], int32
  TensorView pages;              // [sequences, KV heads of the heads, capacity], int32

  // Those of its arguments that it shares with Attention.
  Attention attention_args() const;
  // KV heads that the query heads belong to.
  std::int64_t kv_heads() const {
    return q.shape[1] == 0 ? 0 : (first_head + q.shape[1] - 1) / group + 1;
  }
};

// Enqueues it; may run in a graph, in which lengths and pages change. Types, sizes and strides as for
// Attention, pages dense; otherwise an Error that names the argument.
void page_attention(const PageAttention& args, Stream& stream);

void check_page_attention(const PageAttention& args);

// The plain definition, run at once by the caller.
void page_attention_reference(const PageAttention& args);

}  // namespace nvllm::kernels
