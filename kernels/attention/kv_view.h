// KvView: one layer's keys and values of many sequences, as kernels see them, however they are kept.
//
// Tokens lie in blocks of block_size. Token t of sequence s is token t % block_size of the block
// block_table[s][t / block_size]; without a block table, of block s (contiguous: one block holds a whole
// sequence). A token's `slot` is block * block_size + its place in the block.
#pragma once

#include <cstdint>

#include "device/tensor_view.h"

namespace nvllm::kernels {

inline constexpr std::int64_t kMaxHeadDim = 256;

struct KvView {
  // [blocks, block_size, kv_heads, head_dim]. The elements of a head are dense; the other strides are
  // free, and the same for both.
  TensorView keys;
  TensorView values;
  TensorView
      block_table;  // [sequences, blocks of the longest], int32, dense; data == nullptr: none

  std::int64_t blocks() const { return keys.shape[0]; }
  std::int64_t block_size() const { return keys.shape[1]; }
  std::int64_t kv_heads() const { return keys.shape[2]; }
  std::int64_t head_dim() const { return keys.shape[3]; }
};

// An Error that names `operation` and what is wrong with the view.
void check_kv_view(const KvView& kv, const char* operation);

}  // namespace nvllm::kernels
