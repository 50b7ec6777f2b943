// What is read of the configurations of Qwen3-Next, Qwen3.5 and Qwen3.6.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "model/config/config_fixture.h"

namespace nvllm::model {

Json hybrid(const char* architecture) {
  Json json = with_linear_attention(with_experts(qwen3()));
  json["architectures"] = {architecture};
  return json;
}

Json qwen35() {
  Json json = with_linear_attention(qwen3());
  json["architectures"] = {"Qwen3_5ForConditionalGeneration"};
  return json;
}

std::string refusal_with(Json json, const std::string& key, Json value) {
  json[key] = std::move(value);
  return refusal(json_text(json));
}

TEST_CASE("a Qwen3.5 has linear attention in all layers but some, and gates of attention") {
  const ModelConfig config = parse(qwen35());
  const LinearAttentionConfig& linear = config.linear_attention;
  CHECK(linear.layers == std::vector<bool>{true, true, false});
  CHECK(linear.layer_count() == 2);
  CHECK(linear.key_heads == 2);
  CHECK(linear.value_heads == 6);
  CHECK(linear.key_head_dim == 16);
  CHECK(linear.value_head_dim == 24);
  CHECK(linear.conv_width == 4);
  CHECK_FALSE(linear.interleaved_by_key_head);
  CHECK(config.kv_layers() == 1);
  CHECK(config.kv_layers_before(2) == 0);
  CHECK(config.output_gate);
  CHECK(config.qk_norm);
  CHECK(config.norm_weight_offset == 1);
  CHECK(config.unfused_norms());
  CHECK(config.rotary_dim() == 8);  // a quarter of 32
  CHECK(config.text_part);
  CHECK(config.skips_mtp);
  CHECK(config.moe.experts == 0);
  const Json types = {"full_attention", "linear_attention", "full_attention"};
  CHECK(parse(with(qwen35(), "layer_types", types)).linear_attention.layers ==
        std::vector<bool>{false, true, false});
  const Json full = {"full_attention", "full_attention", "full_attention"};
  CHECK(parse(with(qwen35(), "layer_types", full)).linear_attention.key_heads == 0);
  // The other families have none.
  CHECK(parse(qwen3()).linear_attention.key_heads == 0);
  CHECK(parse(qwen3()).kv_layers() == 3);
  CHECK(parse(qwen3()).rotary_dim() == 32);
}

TEST_CASE("the part of a head that is rotated: of RoPE's keys, of the others, or a quarter") {
  const Json rope = parse_json(R"({"rope_theta": 1e7, "rope_type": "default",
    "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1], "mrope_interleaved": true})");
  const ModelConfig config = parse(with(qwen35(), "rope_parameters", rope));
  CHECK(config.rotary_dim() == 16);
  CHECK(config.rope.theta == 1e7);
  CHECK(parse(with(qwen35(), "partial_rotary_factor", 1)).rotary_dim() == 32);
  CHECK(refusal_with(qwen35(), "partial_rotary_factor", 0.1) ==
        "DIR/config.json: partial_rotary_factor 0.1: rotates 3 elements of each head of 32; it "
        "must be an even number from 2 on");
  CHECK(refusal_of("partial_rotary_factor", 0.5) ==
        "DIR/config.json: partial_rotary_factor 0.5: RoPE over a part of a head is not supported");
}

TEST_CASE("experts of Qwen3.5 and Qwen3-Next, with the shared one") {
  const ModelConfig config = parse(hybrid("Qwen3_5MoeForConditionalGeneration"));
  CHECK(config.moe.experts == 10);
  CHECK(config.moe.experts_per_token == 3);
  CHECK(config.moe.intermediate_size == 48);
  CHECK(config.moe.shared_intermediate_size == 40);
  CHECK(config.moe.renormalize);
  CHECK(config.text_part);
  CHECK_FALSE(config.linear_attention.interleaved_by_key_head);
  // It has no key for the size of an MLP.
  CHECK(parse(without(hybrid("Qwen3_5MoeForConditionalGeneration"), "intermediate_size"))
            .moe.layer_count() == 3);

  const Json next = hybrid("Qwen3NextForCausalLM");
  CHECK(parse(next).moe.renormalize);
  CHECK_FALSE(parse(with(next, "norm_topk_prob", false)).moe.renormalize);
  CHECK(parse(next).linear_attention.interleaved_by_key_head);
  CHECK_FALSE(parse(next).text_part);
  CHECK(parse(next).skips_mtp);
  CHECK(parse(with(next, "mlp_only_layers", {1})).moe.layers ==
        std::vector<bool>{true, false, true});
}

TEST_CASE("what linear attention cannot be is refused, with its key and value") {
  CHECK(refusal_with(qwen35(), "full_attention_interval", 4) ==
        "DIR/config.json: full_attention_interval 4: leaves no layer with attention, of 3; there "
        "must be one");
  CHECK(refusal_with(qwen35(), "linear_num_value_heads", 5) ==
        "DIR/config.json: linear_num_value_heads 5: must be a multiple of linear_num_key_heads, "
        "which is 2");
  CHECK(refusal_with(qwen35(), "linear_key_head_dim", 20) ==
        "DIR/config.json: linear_key_head_dim 20: must be a multiple of 8");
  CHECK(refusal_with(qwen35(), "linear_conv_kernel_dim", 9)
            .starts_with("DIR/config.json: linear_conv_kernel_dim 9: "));
  CHECK(refusal_with(qwen35(), "output_gate_type", "sigmoid") ==
        "DIR/config.json: output_gate_type \"sigmoid\": must be swish");
  CHECK(refusal_with(qwen35(), "hidden_act", "gelu") ==
        "DIR/config.json: hidden_act \"gelu\": a Qwen3_5ForConditionalGeneration has silu");
  CHECK(refusal_with(qwen35(), "layer_types", {"linear_attention", "full_attention"})
            .find("layer_types") != std::string::npos);
  CHECK(refusal_of("layer_types", {"linear_attention", "full_attention", "full_attention"})
            .find("layers of type \"linear_attention\" are not supported") != std::string::npos);
}

}  // namespace nvllm::model
