// KvView: the keys and values of many sequences in one layer, as kernels see them, however the
// cache keeps them.
//
// Tokens lie in blocks of block_size. Token t of sequence s is token t % block_size of block
// block_table[s][t / block_size]; without a block table it lies in block s, which holds the whole
// sequence (contiguous). The `slot` of a token is block * block_size + its index in the block.
#pragma once

#include <cstdint>

#include "device/tensor_view.h"

namespace nvllm::kernels {

inline constexpr std::int64_t kMaxHeadDim = 256;

struct KvView {
  // [blocks, block_size, kv_heads, head_dim]. The elements of a head are dense; the other strides
  // are free, and the same for keys and values.
  TensorView keys;
  TensorView values;
  TensorView
      block_table;  // [sequences, blocks of the longest], int32, dense; data == nullptr: none

  std::int64_t blocks() const { return keys.shape[0]; }
  std::int64_t block_size() const { return keys.shape[1]; }
  std::int64_t kv_heads() const { return keys.shape[2]; }
  std::int64_t head_dim() const { return keys.shape[3]; }
};

// Throws an Error that names `operation` and what is wrong with the view.
void check_kv_view(const KvView& kv, const char* operation);

}  // namespace nvllm::kernels
