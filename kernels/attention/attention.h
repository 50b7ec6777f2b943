// Causal attention of the newest tokens of each sequence to all of its tokens, and the combination
// of partial attention results, each over some of the tokens, by their log-sum-exps.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "device/backend.h"
#include "device/tensor_view.h"
#include "kernels/attention/kv_view.h"

namespace nvllm::kernels {

// Rows query_start[s] to query_start[s + 1] of q are the last ones of the kv_length[s] tokens of
// sequence s. The keys and values of all these tokens, including the rows' own, are in the cache. A
// row attends to every token up to its own. If `visible` is given, the view may hold any part of a
// sequence's tokens; the result is then a partial attention result, which combine_attention()
// combines with others by its lse.
//   out[r][h] = sum_t softmax_t(scale * q[r][h] · k[t][g]) v[t][g],   g = (first_head + h) / group
// With sinks, a head's softmax has one extra logit, which is not scaled and has no value:
//   out[r][h] = sum_t exp(scale * q[r][h] · k[t][g]) v[t][g] / (exp(sinks[h]) + sum_t exp(...))
// and the lse includes it (on GPUs it is infinite if a sink exceeds all scores by more than 88). Of
// partial results that are combined, exactly one must include it.
//
// With a window, a row attends only to the last `window` of these tokens, itself included.
// first_head > 0 if a rank's query heads begin in the middle of a group. A row that attends to no
// token yields 0 and an lse of -infinity, or its sink. Tokens that no row of a sequence attends to
// are not read.
//
// A NaN in q makes its row and head NaN. A NaN in a key or value makes the rows that attend to it
// NaN, in the heads of its group; a NaN or infinity in a value may also reach earlier rows of its
// sequence and, with a window, later ones.
struct Attention {
  TensorView out{};  // [rows, heads, head_dim], of q's type or float32
  TensorView q{};    // [rows, heads, head_dim]; any row stride (stride[0])
  KvView kv{};
  // [2, kv_heads], float32, for an E4m3 cache: the factors of each head's keys and values.
  // Optional; the default is 1.
  TensorView kv_scales{};
  TensorView sinks{};  // [heads], of q's type: those of this rank's heads; optional
  // [sequences + 1], int32, ascending. Rows outside this range are not touched.
  TensorView query_start{};
  TensorView kv_length{};  // [sequences], int32: tokens in the view
  // [sequences], int32: how many tokens the first row of each sequence attends to; each later row
  // attends to one more. Any value is allowed and is clamped to [0, kv_length]. Default: kv_length
  // - rows + 1.
  TensorView visible{};
  // [rows, heads], float32: the log of the sum of exp(scale * q · k); optional.
  TensorView lse{};
  std::int64_t window = 0;      // max. tokens that a row attends to; 0: unlimited
  std::int64_t group = 1;       // query heads per KV head
  std::int64_t first_head = 0;  // index of this rank's first query head in its group
  float scale = 1.0f;

  // Promises that the kernels enqueued just before this call write nothing that it reads except the
  // rows' own queries, keys and values: no lengths, no block table, no earlier tokens. The kernel
  // may then read those before its predecessors have ended. The promise covers the norms, GEMMs,
  // activations and norm_rope_store that directly precede this call, and the operation before them.
  // It has no effect with `visible`.
  bool history_is_visible = false;

  // A row's bits depend only on that row and on what it attends to, not on the number of rows or
  // the lengths of other sequences: on GPUs the prefill kernel then computes all rows. (On the CPU
  // this always holds.)
  bool invariant = false;

  // Upper bounds that hold for every replay of a captured graph.
  std::int64_t max_query_rows = 0;  // per sequence
  std::int64_t max_kv_length = 0;
};

// Enqueues it. q is float32, bfloat16 or float16, and the cache has its type or is of E4m3
// (DType::u8; device/e4m3.h). head_dim is a multiple of 8, with E4m3 of 16, and at most
// kMaxHeadDim, and every head begins at a multiple of 16 bytes. Rows, sequences and heads may be
// any number, also 0. Otherwise it throws an Error that names the argument.
void attention(const Attention& args, Stream& stream);

// The same for a batch whose first decode_sequences sequences have one row each and whose others
// have more. If the cache has a block table, the former run in the decode kernel and the latter in
// the prefill kernel.
void attention(const Attention& args, std::int64_t decode_sequences, Stream& stream);
void check_attention(const Attention& args);
// Checks everything except the sequences, for operations that select tokens in other ways.
// `operation` is their name, for error messages.
void check_attention_rows(const Attention& args, const char* operation);

inline constexpr int kMaxAttentionParts = 8;

// Attention over disjoint sets of tokens becomes attention over their union:
//   out[r][h] = sum_i exp(parts[i].lse[r][h] - lse[r][h]) parts[i].out[r][h],
//   lse[r][h] = log(sum_i exp(parts[i].lse[r][h]))
// It is computed in float32 and in the order of the parts, so no bit depends on the order in which
// they were computed. A part with an lse of -infinity has no weight, whatever its out is; if all
// parts are such, the result is 0 and its lse -infinity. A single part is only converted to the
// type of out.
//
// out and lse may be those of one of the parts, if the types are the same: an accumulator in
// float32 thus grows part by part, and the last call converts it to the model's type.
struct CombineAttention {
  struct Part {
    TensorView out;  // [rows, heads, head_dim]: float32, bfloat16 or float16
    TensorView lse;  // [rows, heads], float32
  };

  TensorView out;  // of the shape of a part
  TensorView lse;  // [rows, heads], float32; may be none
  std::array<Part, kMaxAttentionParts> parts{};
  int count = 0;  // number of parts, at least 1
};

// Enqueues it. All tensors are dense and begin at multiples of 16 bytes, and head_dim is a multiple
// of 8. Otherwise it throws an Error that names the argument.
void combine_attention(const CombineAttention& args, Stream& stream);
void check_combine_attention(const CombineAttention& args);

}  // namespace nvllm::kernels
