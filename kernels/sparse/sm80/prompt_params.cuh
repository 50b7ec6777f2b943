// The queries and keys of a prompt (kernels/sparse/prompt_rows.h) as parameters of the kernels that
// select tokens.
#pragma once

#include "kernels/common/sm80/types.cuh"
#include "kernels/sparse/prompt_rows.h"

namespace nvllm::kernels::cuda {

template <typename T>
struct PromptParams {
  const T* q;
  const T* keys;
  const int* table;
  long long q_row, block_stride, token_stride, head_stride;
  int block_size, heads, group, first_head, head_dim, rows, tokens, first_position;

  explicit PromptParams(const PromptRows& prompt)
      : q(prompt.q.as<T>()),
        keys(prompt.kv.keys.as<T>()),
        table(prompt.kv.block_table.as<int>()),
        q_row(prompt.q.stride[0]),
        block_stride(prompt.kv.keys.stride[0]),
        token_stride(prompt.kv.keys.stride[1]),
        head_stride(prompt.kv.keys.stride[2]),
        block_size(static_cast<int>(prompt.kv.block_size())),
        heads(static_cast<int>(prompt.heads())),
        group(static_cast<int>(prompt.group)),
        first_head(static_cast<int>(prompt.first_head)),
        head_dim(static_cast<int>(prompt.head_dim())),
        rows(static_cast<int>(prompt.rows())),
        tokens(static_cast<int>(prompt.tokens())),
        first_position(static_cast<int>(prompt.first_position)) {}

  // The token's key of the first KV head.
  __device__ __forceinline__ const T* keys_of(int token) const {
    const long long block = table == nullptr ? 0 : table[token / block_size];
    return keys + block * block_stride + token % block_size * token_stride;
  }
  // The key that a query head attends to.
  __device__ __forceinline__ const T* key(int token, int head) const {
    return keys_of(token) + (first_head + head) / group * head_stride;
  }
};

}  // namespace nvllm::kernels::cuda
