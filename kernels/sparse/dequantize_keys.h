// Dequantizes the keys of one sequence from a cache of E4m3, for operations that select tokens by
// keys in floats (block_mask.h, vertical_slash.h).
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "kernels/attention/kv_view.h"

namespace nvllm::kernels {

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
