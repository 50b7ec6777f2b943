// What is read of a Gemma 4's configuration.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "model/config/config_fixture.h"

namespace nvllm::model {

// As gemma-4's, of other sizes.
Json gemma4() {
  return parse_json(R"({
    "architectures": ["Gemma4ForCausalLM"], "attention_bias": false, "attention_k_eq_v": true,
    "bos_token_id": 2, "dtype": "bfloat16", "enable_moe_block": false, "eos_token_id": 3,
    "expert_intermediate_size": null, "final_logit_softcapping": 30.0, "global_head_dim": 64,
    "head_dim": 32, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 48,
    "hidden_size_per_layer_input": 0, "intermediate_size": 96,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "max_position_embeddings": 1024, "model_type": "gemma4_text", "moe_intermediate_size": null,
    "num_attention_heads": 4, "num_experts": null, "num_global_key_value_heads": 1,
    "num_hidden_layers": 4, "num_key_value_heads": 2, "num_kv_shared_layers": 0,
    "rms_norm_eps": 1e-06, "rope_parameters": {
      "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1e6,
                         "rope_type": "proportional"},
      "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"}},
    "sliding_window": 16, "tie_word_embeddings": true, "top_k_experts": null,
    "use_bidirectional_attention": null, "use_double_wide_mlp": false, "vocab_size": 512,
    "vocab_size_per_layer_input": 512})");
}

std::string refusal_of_gemma4(const std::string& key, Json value) {
  return refusal(json_text(with(gemma4(), key, std::move(value))));
}

TEST_CASE("a Gemma 4 has heads, RoPE and values by the kind of its layers") {
  const ModelConfig config = parse(gemma4());
  CHECK(config.local_layers == std::vector<bool>{true, false, true, false});
  CHECK(config.windows == std::vector<std::int64_t>{16, 0, 16, 0});
  CHECK(config.differs_in_heads());
  CHECK(config.head_dim_of(0) == 32);
  CHECK(config.kv_heads_of(0) == 2);
  CHECK(config.head_dim_of(1) == 64);
  CHECK(config.kv_heads_of(1) == 1);
  CHECK(config.global_values_are_keys);
  CHECK(config.rope.type == layers::RopeConfig::Type::proportional);
  CHECK(config.rope.theta == 1e6);
  CHECK(config.rope.rotated == 0.25);
  CHECK(config.rotary_dim() == 64);
  REQUIRE(config.local_rope.has_value());
  CHECK(config.local_rope->theta == 1e4);
  CHECK(config.local_rotary_dim() == 32);
}

TEST_CASE("a Gemma 4's norms, scales and cap") {
  const ModelConfig config = parse(gemma4());
  CHECK(config.activation == kernels::Activation::gelu_tanh);
  CHECK(config.qk_norm);
  CHECK(config.v_norm);
  CHECK(config.norm_weight_offset == 0);
  CHECK(config.unfused_norms());
  CHECK(config.embedding_scale == std::sqrt(48.0f));
  CHECK(config.attention_scale == 1);
  CHECK(config.logit_cap == 30);
  CHECK(parse(with(gemma4(), "final_logit_softcapping", nullptr)).logit_cap == 0);
  CHECK(config.names.in_layer(1, config.names.factor) == "model.layers.1.layer_scalar");
  CHECK(config.moe.experts == 0);
  CHECK(config.per_layer_width == 0);
  CHECK_FALSE(config.text_part);
}

TEST_CASE("without values from keys, a Gemma 4's layers have the same KV heads") {
  const ModelConfig config = parse(with(gemma4(), "attention_k_eq_v", false));
  CHECK_FALSE(config.global_values_are_keys);
  CHECK(config.kv_heads_of(1) == 2);
  CHECK(config.head_dim_of(1) == 64);
}

TEST_CASE("the last layers may read keys and values of earlier ones of their kind") {
  const ModelConfig config =
      parse(with(with(gemma4(), "num_kv_shared_layers", 2), "use_double_wide_mlp", true));
  CHECK(config.kv_layers() == 2);
  CHECK(config.kv_source(0) == 0);
  CHECK(config.kv_source(2) == 0);
  CHECK(config.kv_source(3) == 1);
  CHECK_FALSE(config.has_kv(2));
  CHECK(config.intermediate_size_of(1) == 96);
  CHECK(config.intermediate_size_of(2) == 192);
  CHECK(parse(with(gemma4(), "use_double_wide_mlp", true)).intermediate_size_of(3) == 96);
  CHECK(refusal_of_gemma4("num_kv_shared_layers", 3) ==
        "DIR/config.json: num_kv_shared_layers 3: leaves no layer of type \"full_attention\" "
        "whose keys and values layer 1 could read");
  CHECK(refusal_of_gemma4("num_kv_shared_layers", 4) ==
        "DIR/config.json: num_kv_shared_layers 4: must be a whole number from 0 to 3");
}

TEST_CASE("inputs of layers, of the same vocabulary") {
  const Json json = with(gemma4(), "hidden_size_per_layer_input", 16);
  CHECK(parse(json).per_layer_width == 16);
  CHECK(refusal(json_text(with(json, "vocab_size_per_layer_input", 256))) ==
        "DIR/config.json: vocab_size_per_layer_input 256: another number than vocab_size, 512, is "
        "not supported");
  CHECK(refusal(json_text(without(json, "hidden_size_per_layer_input"))) ==
        "DIR/config.json: hidden_size_per_layer_input: missing; it must be 0 to 65536");
}

TEST_CASE("experts beside the MLP, of every layer") {
  Json json = with(with(gemma4(), "enable_moe_block", true), "num_experts", 8);
  json = with(with(json, "top_k_experts", 2), "moe_intermediate_size", 24);
  const ModelConfig config = parse(json);
  CHECK(config.moe.experts == 8);
  CHECK(config.moe.experts_per_token == 2);
  CHECK(config.moe.intermediate_size == 24);
  CHECK(config.moe.renormalize);
  CHECK(config.moe.beside_mlp);
  CHECK(config.moe.layer_count() == 4);
  CHECK(config.names.in_expert(2, 7, config.names.expert_up) == "model.layers.2.experts.7.up_proj");
  CHECK(refusal(json_text(with(json, "top_k_experts", 9))) ==
        "DIR/config.json: top_k_experts 9: must not be above num_experts, which is 8");
  CHECK(refusal(json_text(with(json, "expert_intermediate_size", 24))) ==
        "DIR/config.json: expert_intermediate_size 24: experts have moe_intermediate_size; remove "
        "this one");
  CHECK(refusal(json_text(without(json, "moe_intermediate_size"))) ==
        "DIR/config.json: moe_intermediate_size: missing; it must be 1 to 16777216");
}

TEST_CASE("the text part of a multimodal Gemma 4") {
  const Json parts = {{"architectures", {"Gemma4ForConditionalGeneration"}},
                      {"model_type", "gemma4"},
                      {"text_config", without(gemma4(), "architectures")},
                      {"vision_config", {{"hidden_size", 1152}}}};
  const ModelConfig config = parse(parts);
  CHECK(config.architecture == "Gemma4ForConditionalGeneration");
  CHECK(config.text_part);
  CHECK(config.head_dim_of(3) == 64);
}

TEST_CASE("what a Gemma 4 can ask for and is not computed is refused by name") {
  CHECK(refusal_of_gemma4("attn_logit_softcapping", 50) ==
        "DIR/config.json: attn_logit_softcapping 50: a cap of attention's logits is not supported");
  CHECK(refusal_of_gemma4("use_bidirectional_attention", "all") ==
        "DIR/config.json: use_bidirectional_attention \"all\": attention to later tokens is not "
        "supported");
  CHECK(parse(with(gemma4(), "use_bidirectional_attention", "vision")).layers == 4);
  CHECK(refusal_of_gemma4("global_head_dim", 520) ==
        "DIR/config.json: global_head_dim 520: must be a whole number from 8 to 512");
  CHECK(refusal_of_gemma4("global_head_dim", 60) ==
        "DIR/config.json: global_head_dim 60: must be a multiple of 8, at most 512");
  CHECK(refusal_of_gemma4("num_global_key_value_heads", 3) ==
        "DIR/config.json: num_global_key_value_heads 3: must divide num_attention_heads, which is "
        "4");
  CHECK(refusal_of_gemma4("final_logit_softcapping", 0)
            .starts_with("DIR/config.json: final_logit_softcapping 0"));
  CHECK(refusal_of_gemma4("layer_types", {"full_attention"}) ==
        "DIR/config.json: layer_types (a list): has 1 types, for num_hidden_layers 4");
  CHECK(refusal(json_text(without(gemma4(), "rope_parameters"))) ==
        "DIR/config.json: rope_parameters: must have full_attention and sliding_attention");
}

TEST_CASE("RoPE over a part of the frequencies, and what it cannot be") {
  const auto with_rope = [](const char* key, Json value, const char* kind = "full_attention") {
    Json json = gemma4();
    json["rope_parameters"][kind][key] = std::move(value);
    return json;
  };
  CHECK(parse(with_rope("partial_rotary_factor", 1)).rope.rotated == 1);
  CHECK(refusal(json_text(with_rope("factor", 8)))
            .ends_with("factor 8: proportional RoPE that is scaled is not supported"));
  CHECK(refusal(json_text(with_rope("partial_rotary_factor", 1.5)))
            .find("partial_rotary_factor 1.5") != std::string::npos);
  CHECK(refusal(json_text(with_rope("partial_rotary_factor", 0.5, "sliding_attention")))
            .ends_with("partial_rotary_factor 0.5: RoPE over a part of a head is not supported"));
}

}  // namespace nvllm::model
