// What is read of a Gemma 3's configuration.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "model/config/config_fixture.h"

namespace nvllm::model {

// As gemma-3-1b's, of other sizes.
Json gemma3() {
  return parse_json(R"({
    "architectures": ["Gemma3ForCausalLM"], "attention_bias": false,
    "attn_logit_softcapping": null, "bos_token_id": 2, "eos_token_id": 1,
    "final_logit_softcapping": null, "head_dim": 32, "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 48, "intermediate_size": 96, "max_position_embeddings": 1024,
    "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 7,
    "num_key_value_heads": 1, "query_pre_attn_scalar": 64, "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 20000, "rope_scaling": null, "rope_theta": 3e6, "sliding_window": 16,
    "sliding_window_pattern": 3, "torch_dtype": "bfloat16", "vocab_size": 512})");
}

TEST_CASE("a Gemma 3 has local and global layers, and norms, scales and activation of its own") {
  const ModelConfig config = parse(gemma3());
  CHECK(config.activation == kernels::Activation::gelu_tanh);
  CHECK(config.qk_norm);
  CHECK(config.tied_embeddings);
  CHECK(config.norm_weight_offset == 1);
  CHECK(config.unfused_norms());
  CHECK(config.embedding_scale == std::sqrt(48.0f));
  CHECK(config.attention_scale == 0.125f);
  CHECK(config.windows == std::vector<std::int64_t>{16, 16, 0, 16, 16, 0, 16});
  CHECK(config.local_layers == std::vector<bool>{true, true, false, true, true, false, true});
  CHECK(config.rope.theta == 3e6);
  REQUIRE(config.local_rope.has_value());
  CHECK(config.local_rope->theta == 2e4);
  CHECK_FALSE(config.text_part);
  CHECK(parse(with(gemma3(), "norm_weight_offset", 0)).norm_weight_offset == 0);  // of GGUF files
  CHECK(parse(with(gemma3(), "norm_weight_offset", 0)).unfused_norms());
  CHECK(config.names.in_layer(1, config.names.post_mlp_norm) ==
        "model.layers.1.post_feedforward_layernorm.weight");
  CHECK_FALSE(parse(qwen3()).unfused_norms());
}

TEST_CASE("a Gemma 3's layers by their types, or by a pattern that need not be said") {
  const Json no_pattern = without(gemma3(), "sliding_window_pattern");
  CHECK(parse(no_pattern).windows == std::vector<std::int64_t>{16, 16, 16, 16, 16, 0, 16});
  CHECK(parse(with(no_pattern, "_sliding_window_pattern", 2)).local_layers ==
        std::vector<bool>{true, false, true, false, true, false, true});
  Json types = Json::array();
  for (int i = 0; i < 7; ++i) types.push_back(i == 2 ? "sliding_attention" : "full_attention");
  CHECK(parse(with(gemma3(), "layer_types", types)).windows ==
        std::vector<std::int64_t>{0, 0, 16, 0, 0, 0, 0});
  // As long as the context: no windows, but the layers rotate as they did.
  const ModelConfig wide = parse(with(gemma3(), "sliding_window", 1024));
  CHECK(wide.windows.empty());
  CHECK(wide.is_local(0));
  CHECK_FALSE(wide.is_local(2));
  const ModelConfig global = parse(with(gemma3(), "sliding_window_pattern", 1));
  CHECK_FALSE(global.local_rope.has_value());
  CHECK_FALSE(global.is_local(0));
}

TEST_CASE("a Gemma 3's two RoPEs in the usual and the newest spelling") {
  const Json usual =
      with(gemma3(), "rope_scaling", parse_json(R"({"factor": 8.0, "rope_type": "linear"})"));
  const Json newest = with(
      without(without(without(gemma3(), "rope_theta"), "rope_scaling"), "rope_local_base_freq"),
      "rope_parameters", parse_json(R"({
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 3000000},
        "sliding_attention": {"rope_type": "default", "rope_theta": 20000}})"));
  for (const Json& json : {usual, newest}) {
    const ModelConfig config = parse(json);
    CHECK(config.rope.type == layers::RopeConfig::Type::linear);
    CHECK(config.rope.factor == 8);
    CHECK(config.rope.theta == 3e6);
    CHECK(config.local_rope->type == layers::RopeConfig::Type::standard);
    CHECK(config.local_rope->theta == 2e4);
    CHECK(config.max_model_len() == 1024);  // which is after stretching
  }
  const Json bare = without(without(gemma3(), "rope_theta"), "rope_local_base_freq");
  CHECK(parse(bare).rope.theta == 1e6);
  CHECK(parse(bare).local_rope->theta == 1e4);
}

TEST_CASE("the text part of a multimodal Gemma 3 leaves out what is as transformers has it") {
  // As gemma-3-4b's.
  const Json json = parse_json(R"({
    "architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106],
    "image_token_index": 262144, "model_type": "gemma3", "torch_dtype": "bfloat16",
    "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
      "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
      "sliding_window": 1024},
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27}})");
  const ModelConfig config = parse(json);
  CHECK(config.architecture == "Gemma3ForConditionalGeneration");
  CHECK(config.text_part);
  CHECK(config.hidden_size == 2560);
  CHECK(config.layers == 34);
  CHECK(config.heads == 8);
  CHECK(config.kv_heads == 4);
  CHECK(config.head_dim == 256);
  CHECK(config.vocab_size == 262208);
  CHECK(config.attention_scale == 1.0f / 16);
  CHECK(config.rope.theta == 1e6);
  CHECK(config.rope.factor == 8);
  CHECK(config.local_rope->theta == 1e4);
  CHECK(config.max_model_len() == 131072);
  CHECK(config.window_of(4) == 1024);
  CHECK(config.window_of(5) == 0);
  CHECK(config.activation == kernels::Activation::gelu_tanh);
  CHECK(config.tied_embeddings);
  CHECK(config.eos_token_ids == std::vector<std::int64_t>{1, 106});
  CHECK(parse(json, R"({"sliding_window": 512})").window_of(0) == 512);
  CHECK(parse(json, R"({"text_config": {"sliding_window": 512}})").window_of(0) == 512);
}

}  // namespace nvllm::model
