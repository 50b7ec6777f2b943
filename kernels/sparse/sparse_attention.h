// Attention to selected tokens: by the rows of one prompt (sparse prefill), and by one row per
// sequence to selected pages (sparse decode).
#pragma once

#include "kernels/attention/attention.h"

namespace nvllm::kernels {

// Rows that share their lists, and tokens of a tile.
inline constexpr std::int64_t kSparseTile = 128;

// Like Attention, for one sequence, whose row r is its token first_position + r. A row attends to
// the selected tokens up to its own position. For each block i of rows, [128 i, 128 i + 128), and
// query head h, there is one of two kinds of lists, int32, in device memory.
//
// Tiles: tiles[i][h] has tile_counts[i][h] numbers, ascending; number j stands for the tokens [128
// j, 128 j + 128).
//
// Ranges and columns: ranges[i][h] has range_counts[i][h] pairs of a begin and an end, and
// columns[i][h] has column_counts[i][h] tokens. Both ascend, and no token is listed twice.
//
// Tokens after a block's last row may be listed; they are not read.
struct SparseAttention {
  TensorView out;  // [rows, heads, head_dim], of q's type or float32
  TensorView q;    // [rows, heads, head_dim]; any row stride (stride[0])
  KvView kv;  // of at least first_position + rows tokens of the sequence, its first one in the view
  TensorView kv_scales;  // as for Attention
  TensorView lse;        // [rows, heads], float32; optional
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
  // The arguments in common with Attention.
  Attention attention_args() const;
  // Host only: the listed tokens, ascending, of rows [begin, end) of a block and head, up to the
  // last of these rows.
  void find_tokens(std::int64_t begin, std::int64_t end, std::int64_t head,
                   std::vector<std::int32_t>& tokens) const;
};

// Types, sizes and strides are as for Attention, lists are dense. Otherwise throws an Error that
// names the argument.
void sparse_attention(const SparseAttention& args, Stream& stream);
void check_sparse_attention(const SparseAttention& args);

// Like Attention, with one row per sequence, which attends to the tokens of selected pages: page p
// of a sequence is its tokens [p page_tokens, (p + 1) page_tokens), as far as they exist. The query
// heads of a KV head share their pages: pages[s][g] has page_counts[s][g] numbers, ascending, where
// g = (first_head + h) / group. Pages beyond kv_length may be listed; they are not read.
struct PageAttention {
  TensorView out;  // [sequences, heads, head_dim], of q's type or float32
  TensorView q;    // [sequences, heads, head_dim]; any row stride (stride[0])
  KvView kv;
  TensorView kv_scales;  // as for Attention
  TensorView kv_length;  // [sequences], int32; 0: a padding row, which yields 0
  TensorView lse;        // [sequences, heads], float32; optional
  std::int64_t group = 1;
  std::int64_t first_head = 0;
  float scale = 1.0f;

  std::int64_t page_tokens = 0;  // a power of two, at least 8
  TensorView page_counts;        // [sequences, KV heads of the heads], int32
  TensorView pages;              // [sequences, KV heads of the heads, capacity], int32

  // The arguments in common with Attention.
  Attention attention_args() const;
  // Host only: the tokens of the pages of a sequence and KV head, ascending, written to `tokens`.
  void find_tokens(std::int64_t sequence, std::int64_t kv_head,
                   std::vector<std::int32_t>& tokens) const;
  // The number of KV heads that the query heads use.
  std::int64_t kv_heads() const {
    return q.shape[1] == 0 ? 0 : (first_head + q.shape[1] - 1) / group + 1;
  }
};

// Lengths and pages may change between replays of a captured graph. Types, sizes and strides are as
// for Attention, pages are dense. Otherwise throws an Error that names the argument.
void page_attention(const PageAttention& args, Stream& stream);
void check_page_attention(const PageAttention& args);

}  // namespace nvllm::kernels
