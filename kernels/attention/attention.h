// Causal attention of the newest tokens of some sequences to all of their tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "device/backend.h"
#include "device/tensor_view.h"
#include "kernels/attention/kv_view.h"

namespace nvllm::kernels {

// Rows query_start[s] to query_start[s + 1] of q are the last ones of the kv_length[s] tokens of
// sequence s, whose keys and values, those of the rows themselves too, are in the cache. A row attends
// to every token up to its own. With `visible` the view may hold any part of a sequence's tokens, and the
// result is a partial, which combine_attention puts together with others by its lse.
//   out[r][h] = sum_t softmax_t(scale * q[r][h] · k[t][g]) v[t][g],   g = (first_head + h) / group
// A rank whose query heads begin in the middle of a group has first_head > 0. A row that attends to no
// token gives 0 and an lse of -infinity. Tokens that no row of a sequence attends to are not read.
//
// A NaN in q spoils its row and head. A NaN in a key or value spoils, in the heads of its group, the rows
// that attend to it; a NaN or infinity in a value may also spoil earlier rows of its sequence.
struct Attention {
  TensorView out;  // [rows, heads, head_dim], of q's type or float32
  TensorView q;    // [rows, heads, head_dim]; rows may lie apart (stride[0])
  KvView kv;
  // [sequences + 1], int32, ascending. Rows before the first or behind the last are not touched.
  TensorView query_start;
  TensorView kv_length;  // [sequences], int32: tokens in the view
  // [sequences], int32: to how many of them the sequence's first row attends, and every later row to one
  // more; any numbers, limited to 0 and kv_length. None: kv_length - rows + 1.
  TensorView visible{};
  TensorView lse;  // [rows, heads], float32: the log of the sum of exp(scale * q · k); may be none
  std::int64_t group = 1;       // query heads per KV head
  std::int64_t first_head = 0;  // of this rank's first query head in its group
  float scale = 1.0f;

  // Whether of all that is read here what was enqueued just before writes nothing but the rows' own queries, keys and
  // values: no lengths, no table, no earlier tokens. Those may then be read before it has ended. What counts are the
  // norms, products, activations and norm_rope_store before this, as many as follow one another, and the operation
  // before them. With `visible` it says nothing.
  bool only_rows_are_new = false;

  // Bounds that hold for every value of query_start and kv_length that a captured graph will see.
  std::int64_t max_query_rows = 0;  // of a sequence
  std::int64_t max_kv_length = 0;
};

// Enqueues it. q and cache of one type (float32, bfloat16 or float16), head_dim a multiple of 8, at
// most kMaxHeadDim, every head at a multiple of 16 bytes; any number of rows, sequences and heads, also 0;
// otherwise an Error that names the argument.
void attention(const Attention& args, Stream& stream);

// The same where the first `singles` sequences have one row each, and the others more: kernels for few rows take those
// first, if blocks have a table.
void attention(const Attention& args, std::int64_t singles, Stream& stream);

void check_attention(const Attention& args);
// All but its sequences: for operations that choose tokens in other ways, with their name.
void check_attention_rows(const Attention& args, const char* operation);

// The plain definition, run at once by the caller.
void attention_reference(const Attention& args);
// The same of one head of one row, to these tokens of a sequence.
void attend_reference(const Attention& args, std::int64_t sequence, std::int64_t row,
                      std::int64_t head, const std::vector<std::int32_t>& tokens);

}  // namespace nvllm::kernels
