// Qwen3-Next, Qwen3.5 and Qwen3.6: three of four layers have linear attention instead of attention,
// whose results have gates. Qwen3.5's files hold the language model of a multimodal one.
#include <string>
#include <vector>

#include "kernels/linear_attention/linear_attention.h"
#include "model/families/family.h"

namespace nvllm::model {
namespace {

// Which layers have linear attention: by their types, or all but every fourth.
std::vector<bool> read_layers(const ConfigKeys& keys, std::int64_t layers) {
  std::vector<bool> linear;
  for (const std::string& type : keys.texts("layer_types")) {
    linear.push_back(type == "linear_attention");
  }
  const std::int64_t interval =
      keys.optional_integer("full_attention_interval", {1, kMaxLayers}).value_or(4);
  if (linear.empty()) {
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      linear.push_back((layer + 1) % interval != 0);
    }
  }
  linear.resize(static_cast<std::size_t>(layers));  // another number is refused with the types
  return linear;
}

std::int64_t read_head_dim(const ConfigKeys& keys, const char* key) {
  const std::int64_t dim = keys.integer(key, {8, kernels::kMaxStateDim});
  if (dim % 8 != 0) keys.refuse(key, "must be a multiple of 8");
  return dim;
}

LinearAttentionConfig read_linear_attention(const ConfigKeys& keys, std::int64_t layers) {
  LinearAttentionConfig config;
  config.layers = read_layers(keys, layers);
  if (config.layer_count() == 0) return {};
  if (config.layer_count() == layers) {
    keys.refuse(keys.has("layer_types") ? "layer_types" : "full_attention_interval",
                "leaves no layer with attention, of ", layers, "; there must be one");
  }
  config.key_heads = keys.integer("linear_num_key_heads", {1, kMaxHeads});
  config.value_heads = keys.integer("linear_num_value_heads", {1, kMaxHeads});
  if (config.value_heads % config.key_heads != 0) {
    keys.refuse("linear_num_value_heads", "must be a multiple of linear_num_key_heads, which is ",
                config.key_heads);
  }
  config.key_head_dim = read_head_dim(keys, "linear_key_head_dim");
  config.value_head_dim = read_head_dim(keys, "linear_value_head_dim");
  config.conv_width = keys.integer("linear_conv_kernel_dim", {2, kernels::kMaxConvWidth});
  return config;
}

void read(const ConfigKeys& keys, ModelConfig& config) {
  config.qk_norm = true;
  config.qkv_bias = config.output_bias = keys.flag("attention_bias", false);
  // A key of configurations that are made of GGUF files, whose weights are whole.
  config.norm_weight_offset = static_cast<float>(
      keys.optional_number("norm_weight_offset", {.min = 0, .max = 1}).value_or(1));
  config.output_gate = keys.flag("attn_output_gate", true);
  if (config.activation != kernels::Activation::silu) {
    keys.refuse("hidden_act", "a ", config.architecture, " has silu");
  }
  const std::string gate = keys.optional_text("output_gate_type").value_or("swish");
  if (gate != "swish" && gate != "silu") keys.refuse("output_gate_type", "must be swish");
  config.linear_attention = read_linear_attention(keys, config.layers);
}

void read_with_experts(const ConfigKeys& keys, ModelConfig& config) {
  read(keys, config);
  config.moe = read_mixture_in_some(keys, config.layers);
  if (config.moe.experts == 0) return;
  config.moe.shared_intermediate_size =
      keys.integer("shared_expert_intermediate_size", {1, kMaxIntermediate});
}

constexpr Family kFamily = {
    .architecture = "Qwen3_5ForConditionalGeneration",
    .other_spelling = "Qwen3_5ForCausalLM",
    .model_type = "qwen3_5_text",
    .text_part = true,
    .linear_attention = true,
    .partial_rope = true,
    .skips_mtp = true,
    .defaults = R"({"partial_rotary_factor": 0.25})",
    .read = read,
};

constexpr Family with_experts(Family family) {
  family.architecture = "Qwen3_5MoeForConditionalGeneration";
  family.other_spelling = "Qwen3_5MoeForCausalLM";
  family.model_type = "qwen3_5_moe_text";
  family.has_experts = true;
  // Its configuration has no size of an MLP, which no layer has.
  family.defaults = R"({"partial_rotary_factor": 0.25, "intermediate_size": 512})";
  family.read = [](const ConfigKeys& keys, ModelConfig& config) {
    read_with_experts(keys, config);
    config.moe.renormalize = true;
  };
  return family;
}

constexpr Family text_alone(Family family) {
  family.architecture = "Qwen3NextForCausalLM";
  family.other_spelling = nullptr;
  family.model_type = "qwen3_next";
  family.text_part = false;
  family.read = [](const ConfigKeys& keys, ModelConfig& config) {
    read_with_experts(keys, config);
    config.moe.renormalize = keys.flag("norm_topk_prob", true);
    // GGUF files of 2026 have q, k and v apart from z, not by key head.
    config.linear_attention.interleaved_by_key_head = keys.flag("in_proj_qkvz_by_key_head", true);
    config.linear_attention.gates_by_key_head = true;
  };
  return family;
}

}  // namespace

constexpr Family kQwen35 = kFamily;
constexpr Family kQwen35Moe = with_experts(kFamily);
constexpr Family kQwen3Next = text_alone(with_experts(kFamily));

}  // namespace nvllm::model
