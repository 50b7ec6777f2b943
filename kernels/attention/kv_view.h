// KvView: the keys and values of many sequences in one layer, as kernels see them, for every cache
// layout.
//
// Tokens are stored in blocks of block_size. Token t of sequence s is token t % block_size of block
// block_table[s][t / block_size]; without a block table, block s holds all of sequence s
// (contiguous). A token's `slot` is block * block_size + its index in the block.
#pragma once

#include <cstdint>

#include "device/tensor_view.h"

namespace nvllm::kernels {

inline constexpr std::int64_t kMaxHeadDim = 512;
inline constexpr std::int64_t kMaxCudaHeadDim = 256;  // on GPUs

struct KvView {
  // [blocks, block_size, kv_heads, head_dim]. The elements of a head are dense; the other strides
  // are arbitrary, but equal for keys and values.
  TensorView keys;
  TensorView values;
  // [sequences, max. blocks], int32, dense; data == nullptr: none.
  TensorView block_table;

  std::int64_t blocks() const { return keys.shape[0]; }
  std::int64_t block_size() const { return keys.shape[1]; }
  std::int64_t kv_heads() const { return keys.shape[2]; }
  std::int64_t head_dim() const { return keys.shape[3]; }

  // Host only: the block of a token, and the element offset of a head's key or value.
  std::int64_t block_of(std::int64_t sequence, std::int64_t token) const {
    if (block_table.data == nullptr) return sequence;
    return block_table.as<std::int32_t>()[sequence * block_table.shape[1] + token / block_size()];
  }
  std::int64_t offset(std::int64_t block, std::int64_t inside, std::int64_t kv_head) const {
    return block * keys.stride[0] + inside * keys.stride[1] + kv_head * keys.stride[2];
  }
};

// Throws an Error that names `operation` and what is wrong with the view.
void check_kv_view(const KvView& kv, const char* operation);

// The scales of an E4m3 KV cache (device/e4m3.h): [2, kv_heads], float32. A key is its E4m3 value
// times scales[0][head], a value its E4m3 value times scales[1][head]. Without scales (data ==
// nullptr) the factors are 1. On the host:
inline float key_scale(const TensorView& scales, std::int64_t kv_head) {
  return scales.data == nullptr ? 1.0f : scales.as<float>()[kv_head];
}
inline float value_scale(const TensorView& scales, std::int64_t kv_head) {
  return scales.data == nullptr ? 1.0f : scales.as<float>()[scales.shape[1] + kv_head];
}

// Throws an Error that names `operation` if the scales do not fit the cache.
void check_kv_scales(const TensorView& scales, const KvView& kv, const char* operation);

}  // namespace nvllm::kernels
