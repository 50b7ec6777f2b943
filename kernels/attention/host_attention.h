// Attention by the host's cores: of single rows to blocks of keys and values at any places in the host's memory,
// with the CPU backend's loops. What a device adds to its own attention by the log-sum-exps
// (kernels/attention/combine_attention.h). It needs no stream, and no device.
//
// A token's keys of all KV heads lie side by side, and so do its values: threads go through a block in pieces,
// and through a piece head by head, so that pages of memory are met once. All query heads of a KV head share what
// is read of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/cpu/crew.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

// A block that a row attends to, whole: keys at `data` + HostAttention::keys, values at `data` + values, each
// [block_tokens, kv_heads, head_dim] of q's type, dense.
struct HostAttentionBlock {
  std::int32_t row = 0;
  const unsigned char* data = nullptr;
  bool operator==(const HostAttentionBlock&) const = default;
};

struct HostAttention {
  TensorView out;  // [rows, heads, head_dim], float32, dense; a row without blocks gives 0
  TensorView lse;  // [rows, heads], float32, dense; -infinity
  TensorView q;    // [rows, heads, head_dim], float32, bfloat16 or float16; rows may lie apart
  std::span<const HostAttentionBlock> blocks;  // by ascending row
  std::int64_t keys = 0, values = 0;           // bytes from where a block begins
  std::int64_t block_tokens = 0, kv_heads = 0;
  // As in kernels::Attention.
  std::int64_t group = 1, first_head = 0;
  float scale = 1.0f;
};

// Runs it with the crew's threads and the caller's, and returns when it is done. `scratch` grows as it has to,
// and may be used again. No bit depends on the number of threads, or on other rows.
void host_attention(const HostAttention& args, nvllm::cpu::Crew& crew, std::vector<float>& scratch);

}  // namespace nvllm::kernels
