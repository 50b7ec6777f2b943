// Gemma 4: norms as Gemma 3 has them, but with whole weights; values are normed, too, and logits
// are capped. Layers without a window have heads of their own, and RoPE over a part of their
// frequencies. Some models take values from keys, let the last layers read the keys and values of
// earlier ones, give layers embeddings of their own, or have experts beside the MLP.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/attention/kv_view.h"
#include "model/families/family.h"

namespace nvllm::model {
namespace {

constexpr std::int64_t kMaxPerLayerWidth = 65536;

void refuse_unsupported(const ConfigKeys& keys) {
  if (keys.has("attn_logit_softcapping")) {
    keys.refuse("attn_logit_softcapping", "a cap of attention's logits is not supported");
  }
  // "vision": among the tokens of a picture, which there are none of here.
  if (keys.optional_text("use_bidirectional_attention").value_or("vision") != "vision") {
    keys.refuse("use_bidirectional_attention", "attention to later tokens is not supported");
  }
}

void read_experts(const ConfigKeys& keys, ModelConfig& config) {
  if (!keys.flag("enable_moe_block", false)) return;
  if (keys.has("expert_intermediate_size")) {
    keys.refuse("expert_intermediate_size", "experts have moe_intermediate_size; remove this one");
  }
  config.moe =
      read_moe(keys, "num_experts", "moe_intermediate_size", config.layers, "top_k_experts");
  config.moe.renormalize = true;
  config.moe.beside_mlp = true;
}

void read_per_layer_inputs(const ConfigKeys& keys, ModelConfig& config) {
  constexpr const char* kVocabulary = "vocab_size_per_layer_input";
  config.per_layer_width = keys.integer("hidden_size_per_layer_input", {0, kMaxPerLayerWidth});
  if (config.per_layer_width == 0) return;
  const auto words = keys.optional_integer(kVocabulary, {}).value_or(config.vocab_size);
  if (words != config.vocab_size) {
    keys.refuse(kVocabulary, "another number than vocab_size, ", config.vocab_size,
                ", is not supported");
  }
}

// The heads of full-attention layers.
void read_global_heads(const ConfigKeys& keys, ModelConfig& config) {
  config.global_head_dim = keys.integer("global_head_dim", {8, kernels::kMaxHeadDim});
  if (config.global_head_dim % 8 != 0) {
    keys.refuse("global_head_dim", "must be a multiple of 8, at most ", kernels::kMaxHeadDim);
  }
  config.global_kv_heads = config.kv_heads;
  config.global_values_are_keys = keys.flag("attention_k_eq_v", false);
  // Without it transformers does not look at the number.
  if (!config.global_values_are_keys) return;
  config.global_kv_heads =
      keys.optional_integer("num_global_key_value_heads", {1, kMaxHeads}).value_or(config.kv_heads);
  if (config.heads % config.global_kv_heads != 0) {
    keys.refuse("num_global_key_value_heads", "must divide num_attention_heads, which is ",
                config.heads);
  }
}

void read_shared_layers(const ConfigKeys& keys, const std::vector<std::string>& types,
                        ModelConfig& config) {
  constexpr const char* kKey = "num_kv_shared_layers";
  const std::int64_t shared = keys.optional_integer(kKey, {0, config.layers - 1}).value_or(0);
  config.kv_shared_layers = shared;
  config.double_wide_shared_mlp = keys.flag("use_double_wide_mlp", false);
  const auto first = types.end() - static_cast<std::ptrdiff_t>(shared);
  for (auto type = first; type != types.end(); ++type) {
    if (std::find(types.begin(), first, *type) != first) continue;
    keys.refuse(kKey, "leaves no layer of type ", quoted_text(*type),
                " whose keys and values layer ", type - types.begin(), " could read");
  }
}

void read(const ConfigKeys& keys, ModelConfig& config) {
  refuse_unsupported(keys);
  const std::vector<std::string> types = keys.texts("layer_types");
  if (std::ssize(types) != config.layers) {
    keys.refuse("layer_types", "has ", types.size(), " types, for num_hidden_layers ",
                config.layers);
  }
  if (!config.local_rope || !keys.rope().has("full_attention")) {
    keys.refuse("rope_parameters", "must have full_attention and sliding_attention");
  }
  config.qk_norm = config.v_norm = true;
  config.qkv_bias = config.output_bias = keys.flag("attention_bias", false);
  config.attention_scale = 1;
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
  config.logit_cap = static_cast<float>(
      keys.optional_number("final_logit_softcapping", {.min = 1e-3, .max = 1e6}).value_or(0));
  read_global_heads(keys, config);
  read_shared_layers(keys, types, config);
  read_experts(keys, config);
  read_per_layer_inputs(keys, config);
}

constexpr Family kFamily = {
    .architecture = "Gemma4ForCausalLM",
    .model_type = "gemma4_text",
    .tied_embeddings = true,
    .window = Family::Window::pattern,
    .local_rope = true,
    .has_experts = true,
    .defaults = R"({"hidden_activation": "gelu_pytorch_tanh"})",
    .read = read,
    .names = {.mlp_norm = "pre_feedforward_layernorm.weight",
              .post_attention_norm = "post_attention_layernorm.weight",
              .post_mlp_norm = "post_feedforward_layernorm.weight",
              .factor = "layer_scalar",
              .router = "router.proj",
              .experts = "experts."},
};

}  // namespace

constexpr Family kGemma4 = kFamily;
constexpr Family kGemma4TextPart =
    with_text_part(kFamily, "Gemma4ForConditionalGeneration", "gemma4");

}  // namespace nvllm::model
