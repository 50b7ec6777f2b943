// Attention of one row per sequence to chosen pages of its tokens: what sparse decoding computes.
#pragma once

#include "kernels/attention/attention.h"

namespace nvllm::kernels {

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
  Attention shared() const;
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
