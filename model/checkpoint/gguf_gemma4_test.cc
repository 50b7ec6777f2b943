// GGUF files of Gemma 4: configurations, names, and what is refused.
#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/checkpoint/checkpoint.h"
#include "model/testing/gguf_builder.h"

namespace nvllm::model {
namespace {

constexpr const char* kWhere = "DIR/model.gguf: ";

// What a file says; a test changes some of it.
struct Gemma4 {
  // Three layers with a window and one without; -1: the key is absent.
  std::map<std::string, std::int64_t> numbers = {{"block_count", 4},
                                                 {"context_length", 128},
                                                 {"embedding_length", 8},
                                                 {"feed_forward_length", 6},
                                                 {"attention.head_count", 2},
                                                 {"attention.head_count_kv", 2},
                                                 {"attention.key_length", 16},
                                                 {"attention.value_length", 16},
                                                 {"attention.key_length_swa", 8},
                                                 {"attention.value_length_swa", 8},
                                                 {"attention.sliding_window", 32},
                                                 {"attention.shared_kv_layers", 0},
                                                 {"embedding_length_per_layer_input", 0},
                                                 {"rope.dimension_count", 16},
                                                 {"rope.dimension_count_swa", 8}};
  std::map<std::string, std::vector<std::int32_t>> lists = {
      {"attention.sliding_window_pattern", {1, 1, 1, 0}}};
  std::vector<float> factors = {1, 1, 1, 1e30f, 1e30f, 1e30f, 1e30f, 1e30f};
  bool global_v = true;

  GgufBuilder file() const {
    GgufBuilder b;
    b.text("general.architecture", "gemma4");
    for (const auto& [key, value] : numbers) {
      if (value >= 0 && !lists.contains(key)) {
        b.u32("gemma4." + key, static_cast<std::uint32_t>(value));
      }
    }
    for (const auto& [key, values] : lists) b.numbers("gemma4." + key, values);
    b.f32("gemma4.attention.layer_norm_rms_epsilon", 1e-6f);
    b.f32("gemma4.rope.freq_base", 1e6f).f32("gemma4.rope.freq_base_swa", 1e4f);
    b.f32("gemma4.final_logit_softcapping", 30);
    add_embedding(b);
    std::string bytes;
    for (const float factor : factors) bytes += GgufBuilder::bytes_of(factor);
    if (!factors.empty()) b.tensor("rope_freqs.weight", GgufType::f32, {factors.size()}, bytes);
    b.counting("blk.3.attn_k.weight", {8, 2});
    if (global_v) b.counting("blk.3.attn_v.weight", {8, 2});
    return b;
  }
};

TEST_CASE("the configuration of a gemma4, whose layers differ") {
  const auto config = config_of(Gemma4().file());
  CHECK(config["architectures"][0] == "Gemma4ForCausalLM");
  CHECK(config["layer_types"] == std::vector<std::string>{"sliding_attention", "sliding_attention",
                                                          "sliding_attention", "full_attention"});
  CHECK(config["head_dim"] == 8);
  CHECK(config["global_head_dim"] == 16);
  CHECK(config["num_key_value_heads"] == 2);
  CHECK(config["attention_k_eq_v"] == false);
  CHECK(config["sliding_window"] == 32);
  CHECK(config["intermediate_size"] == 6);
  CHECK(config["num_kv_shared_layers"] == 0);
  CHECK(config["use_double_wide_mlp"] == false);
  CHECK(config["hidden_size_per_layer_input"] == 0);
  CHECK(config["final_logit_softcapping"] == 30);
  CHECK(config["tie_word_embeddings"] == true);
  CHECK_FALSE(config.contains("enable_moe_block"));
  const auto& full = config["rope_parameters"]["full_attention"];
  CHECK(full["rope_type"] == "proportional");
  CHECK(full["rope_theta"] == 1e6);
  CHECK(static_cast<int>(8 * full["partial_rotary_factor"].get<double>()) == 3);
  CHECK(config["rope_parameters"]["sliding_attention"]["rope_theta"] == 1e4);
}

TEST_CASE("layers of a gemma4 without v take values from keys, and have heads of their own") {
  Gemma4 gemma;
  gemma.global_v = false;
  gemma.lists["attention.head_count_kv"] = {2, 2, 2, 1};
  const auto config = config_of(gemma.file());
  CHECK(config["attention_k_eq_v"] == true);
  CHECK(config["num_key_value_heads"] == 2);
  CHECK(config["num_global_key_value_heads"] == 1);
}

TEST_CASE("the last layers of a gemma4 share keys and values, and may have wider MLPs") {
  Gemma4 gemma;
  gemma.numbers["attention.shared_kv_layers"] = 2;
  CHECK(config_of(gemma.file())["use_double_wide_mlp"] == false);
  gemma.lists["feed_forward_length"] = {6, 6, 12, 12};
  const auto config = config_of(gemma.file());
  CHECK(config["num_kv_shared_layers"] == 2);
  CHECK(config["use_double_wide_mlp"] == true);
  CHECK(config["intermediate_size"] == 6);
}

TEST_CASE("a gemma4 with experts, its names, and the tokens that end an answer") {
  Gemma4 gemma;
  gemma.numbers["expert_count"] = 2;
  gemma.numbers["expert_used_count"] = 1;
  gemma.numbers["expert_feed_forward_length"] = 4;
  gemma.numbers["embedding_length_per_layer_input"] = 5;
  GgufBuilder b = gemma.file();
  b.u32("tokenizer.ggml.eos_token_id", 2);
  b.texts("tokenizer.ggml.tokens", {"a", "<eos>", "<turn|>", "<|tool_response>"});
  b.counting("blk.0.ffn_gate_up_exps.weight", {8, 8, 2});
  b.counting("blk.0.ffn_gate_inp.weight", {8, 2}).counting("blk.0.ffn_gate_inp.scale", {8});
  b.counting("blk.0.ffn_down_exps.weight", {4, 8, 2}).counting("blk.0.ffn_down_exps.scale", {2});
  b.counting("blk.0.layer_output_scale.weight", {1}).counting("blk.0.post_ffw_norm_1.weight", {8});
  b.counting("blk.0.inp_gate.weight", {8, 5}).counting("blk.0.proj.weight", {5, 8});
  b.counting("blk.0.post_norm.weight", {8}).counting("blk.0.ffn_norm.weight", {8});
  b.counting("per_layer_token_embd.weight", {20, 3}).counting("per_layer_proj_norm.weight", {5});
  b.counting("per_layer_model_proj.weight", {8, 20});
  const Checkpoint checkpoint = open(b);
  const auto config = parse_json(checkpoint.config_json());
  CHECK(config["enable_moe_block"] == true);
  CHECK(config["num_experts"] == 2);
  CHECK(config["top_k_experts"] == 1);
  CHECK(config["moe_intermediate_size"] == 4);
  CHECK(config["eos_token_id"] == std::vector<int>{2, 1, 3});
  for (const char* name :
       {"experts.1.gate_proj.weight", "experts.1.up_proj.weight", "experts.0.down_proj.weight",
        "router.proj.weight", "router.scale", "router.per_expert_scale", "layer_scalar",
        "post_feedforward_layernorm_1.weight", "per_layer_input_gate.weight",
        "per_layer_projection.weight", "post_per_layer_input_norm.weight",
        "pre_feedforward_layernorm.weight"}) {
    CAPTURE(std::string(name));
    CHECK(checkpoint.find(str("model.layers.0.", name)) != nullptr);
  }
  for (const char* name :
       {"embed_tokens_per_layer", "per_layer_model_projection", "per_layer_projection_norm"}) {
    CAPTURE(std::string(name));
    CHECK(checkpoint.find(str("model.", name, ".weight")) != nullptr);
  }
}

TEST_CASE("lists of a gemma4 that do not fit are refused by name") {
  const auto error_with = [](const std::string& key, const std::vector<std::int32_t>& values) {
    Gemma4 gemma;
    gemma.numbers["attention.shared_kv_layers"] = 2;
    gemma.lists[key] = values;
    return error_of_file(gemma.file());
  };
  const std::string where = std::string(kWhere) + "metadata gemma4.";
  CHECK(error_with("attention.sliding_window_pattern", {1, 0}) ==
        where + "attention.sliding_window_pattern: expected a list of 4 layers, found one of 2");
  CHECK(error_with("attention.head_count_kv", {2, 2, 1, 2}) ==
        where +
            "attention.head_count_kv: expected one number for all layers of a kind, found 2 and 1");
  CHECK(error_with("attention.head_count_kv", {2, 2, 2, 1}) ==
        where +
            "attention.head_count_kv: expected one number for all layers, which have values of "
            "their own, found 2 and 1");
  CHECK(error_with("attention.head_count_kv", {2, -2, 2, 2}) ==
        where + "attention.head_count_kv: expected whole numbers from 0 to 16777216, found -2");
  CHECK(error_with("feed_forward_length", {6, 6, 18, 18}) ==
        where +
            "feed_forward_length: expected 6 or twice that in layers that share keys and values, "
            "found 18");
  Gemma4 without;
  without.lists.clear();
  CHECK(error_of_file(without.file()) ==
        where + "attention.sliding_window_pattern: expected a list of all layers, found none");
}

TEST_CASE("numbers of a gemma4 that do not fit are refused by name") {
  const auto error_with = [](const std::string& key, std::int64_t value) {
    Gemma4 gemma;
    gemma.numbers[key] = value;
    return error_of_file(gemma.file());
  };
  const std::string where = std::string(kWhere) + "metadata gemma4.";
  CHECK(error_with("rope.dimension_count", 8) ==
        where + "rope.dimension_count: expected the head size 16, found 8");
  CHECK(error_with("rope.dimension_count_swa", 4) ==
        where + "rope.dimension_count_swa: expected the head size 8, found 4");
  CHECK(error_with("attention.value_length_swa", 4) ==
        where + "attention.value_length_swa: expected the head size 8, found 4");
  CHECK(error_with("attention.key_length_swa", -1) ==
        where + "attention.key_length_swa is missing");
  CHECK(error_with("attention.shared_kv_layers", 4) ==
        where + "attention.shared_kv_layers: expected a number below that of layers, found 4");
  CHECK(error_with("attention.sliding_window", 0) ==
        where + "attention.sliding_window: expected a number above 0, found 0");
}

TEST_CASE("factors of a gemma4's RoPE other than 1 and 1e30 are refused") {
  const std::string where =
      std::string(kWhere) +
      "tensor rope_freqs.weight: expected 8 factors, first of 1, then of 1e30, found ";
  Gemma4 gemma;
  gemma.factors = {};
  CHECK(error_of_file(gemma.file()) == where + "none");
  gemma.factors = {1, 1, 1, 1e30f};
  CHECK(error_of_file(gemma.file()) == where + "others, of 4");
  gemma.factors = {1, 1, 2, 1e30f, 1e30f, 1e30f, 1e30f, 1e30f};
  CHECK(error_of_file(gemma.file()) == where + "others, of 8");
  gemma.factors = std::vector<float>(8, 1);
  CHECK(config_of(gemma.file())["rope_parameters"]["full_attention"]["partial_rotary_factor"] ==
        1.0);
}

}  // namespace
}  // namespace nvllm::model
