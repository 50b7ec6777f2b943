// SelfAttention: causal attention with rotated positions and grouped KV heads, split over ranks by heads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/kv_cache.h"
#include "layers/batch.h"
#include "layers/linear.h"
#include "layers/norm.h"
#include "layers/residual.h"

namespace nvllm::layers {

struct AttentionConfig {
  QkvParallelLinear::Modules qkv;  // "model.layers.0.self_attn.q_proj" ...
  std::string output;              // "model.layers.0.self_attn.o_proj"
  std::string q_norm, k_norm;      // tensors: "model.layers.0.self_attn.q_norm.weight"
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  bool qkv_bias = false;
  bool output_bias = false;
  bool qk_norm = false;
  float epsilon = 1e-6f;  // of the norms of q and k
};

// What the attention of layer `layer` will read, as far as it is worth while to fetch of it: where many sequences decode.
kernels::KvPrefetch read_ahead(const Batch& batch, const kvcache::KvCache& kv, std::int64_t layer);

class SelfAttention {
 public:
  SelfAttention(const std::string& name, const AttentionConfig& config, Shard shard);

  void declare(std::vector<Parameter*>& all);
  const HeadPart& heads() const { return part_; }

  // Adds the attention of the stream's norm to the stream. `kv`: the cache for this rank's KV heads, of
  // which this is layer `layer`. `cos_sin`: as of a RopeTable.
  void forward(ResidualStream& stream, const RmsNorm& norm, const Batch& batch,
               kvcache::KvCache& kv, std::int64_t layer, TensorView cos_sin,
               const Context& context) const;
  // Of Context::scratch.
  std::size_t scratch_bytes(std::int64_t rows, DType dtype) const;

 private:
  struct HeadNorms {
    RmsNorm q, k;
  };

  void rotate_and_store(TensorView qkv, const Batch& batch, const kernels::KvView& kv,
                        TensorView cos_sin, const Context& context) const;
  kernels::Attention attention_of(TensorView out, TensorView qkv, const Batch& batch) const;

  HeadPart part_;
  std::int64_t head_dim_;
  QkvParallelLinear qkv_;
  RowParallelLinear out_;
  std::optional<HeadNorms> norms_;
};

}  // namespace nvllm::layers
