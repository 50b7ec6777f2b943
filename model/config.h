// ModelConfig: what a model is, read from a checkpoint's config.json (or a GGUF file's metadata).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/dtype.h"
#include "kernels/pointwise/activation.h"
#include "layers/rope.h"
#include "model/tensor_names.h"

namespace nvllm::model {

// A dense decoder: embedding, layers of attention and gated MLP with RMSNorm before each, norm, head.
struct ModelConfig {
  std::string architecture;  // "Qwen3ForCausalLM"
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t vocab_size = 0;
  std::int64_t max_position_embeddings = 0;
  float rms_norm_eps = 1e-6f;
  kernels::Activation activation = kernels::Activation::silu;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool output_bias = false;  // of attention's output projection
  bool mlp_bias = false;
  bool qk_norm = false;  // RMSNorm over each head of q and k before RoPE
  layers::RopeConfig rope;
  DType dtype = DType::bf16;  // what the checkpoint says of itself
  float initializer_range = 0.02f;
  std::optional<std::int64_t> bos_token_id;
  std::vector<std::int64_t> eos_token_ids;
  TensorNames names;
};

// `text`: of a config.json; `overrides`: a JSON object that is merged over it (--hf-overrides), or empty;
// `where`: the file, for errors. Whatever this program cannot compute is refused by name.
ModelConfig parse_config(std::string_view text, std::string_view overrides,
                         const std::string& where);

// An Error unless they are empty or a JSON object.
void check_overrides(std::string_view overrides);

}  // namespace nvllm::model
