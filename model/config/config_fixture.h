// Fixture of configuration tests.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/json_text.h"
#include "model/config/config.h"
#include "testing/error_of.h"

namespace nvllm::model {
using Json = nlohmann::json;

// A small Qwen3, with the most common key names.
inline Json qwen3() {
  return parse_json(R"({
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "bos_token_id": 1,
    "eos_token_id": [2, 472], "head_dim": 32, "hidden_act": "silu", "hidden_size": 64,
    "initializer_range": 0.05, "intermediate_size": 128, "max_position_embeddings": 1024,
    "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 8,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000.0,
    "sliding_window": null, "tie_word_embeddings": true, "torch_dtype": "float16",
    "use_sliding_window": false, "vocab_size": 512})");
}

inline Json of(const char* architecture) {
  Json json = qwen3();
  json["architectures"] = {architecture};
  return json;
}

inline Json with(Json json, const std::string& key, Json value) {
  json[key] = std::move(value);
  return json;
}

inline Json without(Json json, const std::string& key) {
  json.erase(key);
  return json;
}

// Adds expert keys under both naming schemes.
inline Json with_experts(Json json) {
  json["num_local_experts"] = 12;
  json["num_experts"] = 10;
  json["num_experts_per_tok"] = 3;
  json["moe_intermediate_size"] = 48;
  return json;
}

// Adds the keys of linear attention, for two of the three layers.
inline Json with_linear_attention(Json json) {
  json["full_attention_interval"] = 3;
  json["linear_num_key_heads"] = 2;
  json["linear_num_value_heads"] = 6;
  json["linear_key_head_dim"] = 16;
  json["linear_value_head_dim"] = 24;
  json["linear_conv_kernel_dim"] = 4;
  json["shared_expert_intermediate_size"] = 40;
  return json;
}

// Adds heads and RoPE by layer kind; the last of three layers has no window.
inline Json with_kinds_of_layers(Json json) {
  json["global_head_dim"] = 64;
  json["hidden_size_per_layer_input"] = 0;
  json["layer_types"] = {"sliding_attention", "sliding_attention", "full_attention"};
  json["sliding_window"] = 16;
  json.erase("use_sliding_window");
  json.erase("rope_theta");
  json.erase("rope_scaling");
  json["rope_parameters"] = parse_json(R"({
      "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1e6,
                         "rope_type": "proportional"},
      "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"}})");
  return json;
}

inline ModelConfig parse(const Json& json, const std::string& overrides = "") {
  return parse_config(json_text(json), overrides, "DIR/config.json");
}

inline std::string refusal(const std::string& text, const std::string& overrides = "") {
  return testing::error_of([&] { parse_config(text, overrides, "DIR/config.json"); });
}

inline std::string refusal_of(const std::string& key, Json value) {
  return refusal(json_text(with(qwen3(), key, std::move(value))));
}

}  // namespace nvllm::model
