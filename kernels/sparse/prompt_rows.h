// The queries and keys of one long prompt, for operations that select the earlier tokens that rows
// attend to: PromptRows, and the keys of a cache of E4m3 as floats, which these operations need.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/tensor_view.h"
#include "kernels/attention/kv_view.h"
#include "kernels/common/arguments.h"

namespace nvllm::kernels {

// Row r of q is token first_position + r of the sequence and may attend to the tokens up to itself.
// The keys of all these tokens are in the cache.
struct PromptRows {
  TensorView q;  // [rows, heads, head_dim]; any row stride (stride[0])
  KvView kv;  // of one sequence: block_table is [1, blocks], or none, and the sequence is block 0
  std::int64_t first_position = 0;
  std::int64_t group = 1;       // query heads per KV head
  std::int64_t first_head = 0;  // index of this rank's first query head in its group
  float scale = 1.0f;           // factor of a score q · k

  std::int64_t rows() const { return q.shape[0]; }
  std::int64_t heads() const { return q.shape[1]; }
  std::int64_t head_dim() const { return q.shape[2]; }
  // up to and including the last row
  std::int64_t tokens() const { return first_position + rows(); }
  std::int64_t kv_head(std::int64_t head) const { return (first_head + head) / group; }
};

// Requires float32, bfloat16 or float16, head_dim a multiple of 8 up to kMaxHeadDim, heads at
// multiples of 16 bytes, and a cache that holds all tokens. Otherwise it throws an Error that names
// the argument.
void check_prompt_rows(const PromptRows& rows, const Arguments& check);

// Host only: the address of a head of a row, or of a token's key.
template <typename T>
const T* query_of(const PromptRows& rows, std::int64_t row, std::int64_t head) {
  return rows.q.as<T>() + row * rows.q.stride[0] + head * rows.head_dim();
}

template <typename T>
const T* key_of(const PromptRows& rows, std::int64_t token, std::int64_t kv_head) {
  const KvView& kv = rows.kv;
  return kv.keys.as<T>() + kv.offset(kv.block_of(0, token), token % kv.block_size(), kv_head);
}

// out[t][g] = the key of token t and KV head g, times the head's scale, rounded once to out's type.
struct DequantizeKeys {
  KvView kv;             // of one sequence, in E4m3: block_table is [1, blocks], or none
  TensorView kv_scales;  // [2, kv_heads], float32; optional
  std::int64_t tokens = 0;
  TensorView out;  // [at least tokens, kv_heads, head_dim], any float type, dense
};

// head_dim is a multiple of 16, and heads are at multiples of 16 bytes. Otherwise throws an Error
// that names the argument.
void dequantize_keys(const DequantizeKeys& args, Stream& stream);

}  // namespace nvllm::kernels
