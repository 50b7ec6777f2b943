// Gemma 3: what an attention or MLP block makes is normed before it is added, files hold the
// weights of norms less 1, embeddings are scaled, and layers with a window have their own RoPE.
#include <cmath>

#include "model/families/family.h"

namespace nvllm::model {
namespace {

// transformers': files of multimodal models leave out what is as here.
constexpr const char* kDefaults = R"({
  "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131072,
  "num_attention_heads": 8, "num_key_value_heads": 4, "query_pre_attn_scalar": 256,
  "sliding_window": 4096, "vocab_size": 262208})";

void refuse_unsupported(const ConfigKeys& keys) {
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (keys.has(key)) keys.refuse(key, "capped logits are not supported");
  }
  if (keys.flag("use_bidirectional_attention", false)) {
    keys.refuse("use_bidirectional_attention", "attention to later tokens is not supported");
  }
}

void read(const ConfigKeys& keys, ModelConfig& config) {
  refuse_unsupported(keys);
  config.qk_norm = true;
  config.qkv_bias = config.output_bias = keys.flag("attention_bias", false);
  // A key of configurations that are made of GGUF files, whose weights are whole.
  config.norm_weight_offset = static_cast<float>(
      keys.optional_number("norm_weight_offset", {.min = 0, .max = 1}).value_or(1));
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
  const double scalar = keys.number("query_pre_attn_scalar", {.min = 1e-3, .max = 1e6});
  config.attention_scale = static_cast<float>(1 / std::sqrt(scalar));
  // max_position_embeddings has been stretched by the factor already.
  if (config.rope.type == layers::RopeConfig::Type::linear &&
      !config.rope.original_max_position_embeddings) {
    const double positions = static_cast<double>(config.max_position_embeddings);
    config.rope.original_max_position_embeddings =
        static_cast<std::int64_t>(std::ceil(positions / config.rope.factor));
  }
}

constexpr Family kFamily = {
    .architecture = "Gemma3ForCausalLM",
    .model_type = "gemma3_text",
    .tied_embeddings = true,
    .window = Family::Window::pattern,
    .local_rope = true,
    .rope_theta = 1e6,
    .defaults = kDefaults,
    .read = read,
    .names = {.mlp_norm = "pre_feedforward_layernorm.weight",
              .post_attention_norm = "post_attention_layernorm.weight",
              .post_mlp_norm = "post_feedforward_layernorm.weight"},
};

}  // namespace

constexpr Family kGemma3 = kFamily;
constexpr Family kGemma3TextPart =
    with_text_part(kFamily, "Gemma3ForConditionalGeneration", "gemma3");

}  // namespace nvllm::model
