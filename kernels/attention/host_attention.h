// Attention on the host's cores: single rows attend to blocks of keys and values anywhere in host
// memory. It uses the loops of the CPU backend, but needs neither a stream nor a device. A device
// combines the result with that of its own attention (combine_attention()).
//
// The keys of all KV heads of a token are adjacent in memory, and so are its values. Threads walk a
// block in runs of tokens, and a run head by head, so that each memory page is touched once. All
// query heads of a KV head share what is read for it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/cpu/thread_pool.h"
#include "device/tensor_view.h"

namespace nvllm::kernels {

// A whole block that a row attends to: keys at `data` + HostAttention::keys, values at `data` +
// HostAttention::values, each [block_tokens, kv_heads, head_dim] of the type of q or of E4m3,
// dense.
struct HostAttentionBlock {
  std::int32_t row = 0;
  const unsigned char* data = nullptr;
  bool operator==(const HostAttentionBlock&) const = default;
};

struct HostAttention {
  TensorView out;  // [rows, heads, head_dim], float32, dense; a row without blocks gives 0
  TensorView lse;  // [rows, heads], float32, dense; -infinity
  TensorView q;    // [rows, heads, head_dim], float32, bfloat16 or float16; any row stride
  std::span<const HostAttentionBlock> blocks;  // by ascending row
  std::int64_t keys = 0, values = 0;           // byte offsets within a block
  std::int64_t block_tokens = 0, kv_heads = 0;
  bool of_e4m3 = false;    // whether keys and values are E4m3; otherwise of the type of q
  TensorView kv_scales{};  // in host memory
  // As in kernels::Attention.
  std::int64_t group = 1, first_head = 0;
  float scale = 1.0f;
};

// Runs on the pool's threads and the calling one, and returns when done. `scratch` grows as needed
// and may be reused. No bit depends on the number of threads or on other rows.
void host_attention(const HostAttention& args, nvllm::cpu::ThreadPool& pool,
                    std::vector<float>& scratch);

}  // namespace nvllm::kernels
