// GGUF files of mixtures: configurations, names, a tensor for each expert, and what is refused.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "model/checkpoint/checkpoint.h"
#include "model/testing/gguf_builder.h"

namespace nvllm::model {
namespace {

// Two experts of 6, with 8 inputs, of which a token goes through one.
GgufBuilder mixture_of(const std::string& architecture) {
  GgufBuilder b = metadata_of(architecture);
  b.u32(architecture + ".expert_count", 2).u32(architecture + ".expert_used_count", 1);
  b.u32(architecture + ".expert_feed_forward_length", 6);
  add_embedding(b);
  return b;
}

GgufBuilder gpt_oss() {
  GgufBuilder b = mixture_of("gpt-oss");
  b.u32("gpt-oss.attention.sliding_window", 16);
  return b;
}

TEST_CASE("the configuration of a llama with experts is a Mixtral's") {
  const auto config = config_of(mixture_of("llama"));
  CHECK(config["architectures"][0] == "MixtralForCausalLM");
  CHECK(config["num_local_experts"] == 2);
  CHECK(config["num_experts_per_tok"] == 1);
  CHECK(config["intermediate_size"] == 6);
  CHECK_FALSE(config.contains("mlp_bias"));
}

TEST_CASE("the configuration of a qwen3moe, of which layers without a router have an MLP") {
  GgufBuilder b = mixture_of("qwen3moe");
  CHECK(config_of(b)["mlp_only_layers"] == nlohmann::json::array());
  b.counting("blk.0.ffn_gate.weight", {8, 6});
  const auto config = config_of(b);
  CHECK(config["architectures"][0] == "Qwen3MoeForCausalLM");
  CHECK(config["num_experts"] == 2);
  CHECK(config["moe_intermediate_size"] == 6);
  CHECK(config["norm_topk_prob"] == true);
  CHECK(config["mlp_only_layers"] == std::vector<int>{0});
  b.counting("blk.0.ffn_gate_inp.weight", {8, 2});
  CHECK(config_of(b)["mlp_only_layers"] == nlohmann::json::array());
}

TEST_CASE("a qwen3moe without a size of experts has that of the MLP, divided by those in use") {
  GgufBuilder b = metadata_of("qwen3moe");
  b.u32("qwen3moe.expert_count", 4).u32("qwen3moe.expert_used_count", 2);
  b.raw("qwen3moe.expert_weights_norm", 7, GgufBuilder::bytes_of(std::uint8_t{0}));
  const auto config = config_of(add_embedding(b));
  CHECK(config["moe_intermediate_size"] == 3);
  CHECK(config["norm_topk_prob"] == false);
}

TEST_CASE("the configuration of a gpt-oss, whose YaRN does not round") {
  GgufBuilder b = gpt_oss();
  b.text("gpt-oss.rope.scaling.type", "yarn").f32("gpt-oss.rope.scaling.factor", 32);
  b.u32("gpt-oss.rope.scaling.original_context_length", 64);
  const auto config = config_of(b);
  CHECK(config["architectures"][0] == "GptOssForCausalLM");
  CHECK(config["num_local_experts"] == 2);
  CHECK(config["intermediate_size"] == 6);
  CHECK(config["sliding_window"] == 16);
  CHECK(config["rope_scaling"]["truncate"] == false);
}

TEST_CASE("a gpt-oss ends an answer where it calls a tool, too") {
  GgufBuilder b = gpt_oss();
  b.texts("tokenizer.ggml.tokens", {"<|call|>", "<|endoftext|>", "<|return|>"});
  b.u32("tokenizer.ggml.eos_token_id", 2);
  CHECK(config_of(b)["eos_token_id"] == std::vector<int>{2, 1, 0});
}

TEST_CASE("experts in one tensor are tensors of their own, of any type") {
  GgufBuilder b = mixture_of("qwen3moe");
  b.counting("blk.0.ffn_down_exps.weight", {6, 8, 2});
  std::string blocks(2 * 6 * 18, '\0');
  b.tensor("blk.0.ffn_gate_exps.weight", GgufType::q4_0, {32, 6, 2}, blocks);
  blocks.resize(2 * 5 * 17);
  b.tensor("blk.1.ffn_up_exps.weight", GgufType::mxfp4, {32, 5, 2}, blocks);
  const Checkpoint checkpoint = open(b);
  const auto distance = [&](const std::string& name, std::vector<std::int64_t> shape) {
    const std::string layer = "model.layers." + name.substr(0, 1) + ".mlp.experts.";
    const StoredTensor& first = checkpoint.get(layer + "0." + name.substr(2) + ".weight", shape);
    const StoredTensor& second = checkpoint.get(layer + "1." + name.substr(2) + ".weight", shape);
    CHECK(first.bytes == second.bytes);
    return second.offset - first.offset;
  };
  CHECK(distance("0.down_proj", {8, 6}) == 8 * 6 * 4);
  CHECK(distance("0.gate_proj", {6, 32}) == 6 * 18);
  CHECK(distance("1.up_proj", {5, 32}) == 5 * 17);
  CHECK(checkpoint.tensors().size() == 7);
}

TEST_CASE("names of each architecture's experts, routers, biases and sinks") {
  GgufBuilder b = mixture_of("llama");
  b.counting("blk.0.ffn_gate_inp.weight", {8, 2}).counting("blk.0.ffn_up_exps.weight", {8, 6, 2});
  b.counting("blk.0.ffn_gate.1.weight", {8, 6}).counting("blk.0.ffn_down.0.weight", {6, 8});
  const Checkpoint mixtral = open(b);
  for (const char* name :
       {"gate", "experts.0.w3", "experts.1.w3", "experts.1.w1", "experts.0.w2"}) {
    CAPTURE(std::string(name));
    CHECK(mixtral.find(str("model.layers.0.block_sparse_moe.", name, ".weight")) != nullptr);
  }
  GgufBuilder o = gpt_oss();
  o.counting("blk.0.attn_sinks.weight", {2}).counting("blk.0.ffn_gate_inp.bias", {2});
  o.counting("blk.0.ffn_down_exps.bias", {8, 2}).counting("blk.0.post_attention_norm.weight", {8});
  const Checkpoint checkpoint = open(o);
  for (const char* name : {"self_attn.sinks", "mlp.router.bias", "post_attention_layernorm.weight",
                           "mlp.experts.1.down_proj.bias"}) {
    CAPTURE(std::string(name));
    CHECK(checkpoint.find(str("model.layers.0.", name)) != nullptr);
  }
  const StoredTensor& bias = checkpoint.get("model.layers.0.mlp.experts.1.down_proj.bias", {8});
  CHECK(bias.offset - checkpoint.find("model.layers.0.mlp.experts.0.down_proj.bias")->offset == 32);
}

TEST_CASE("numbers of experts that make no sense are refused by name") {
  const std::string where = "DIR/model.gguf: metadata ";
  GgufBuilder none = metadata_of("qwen3moe");
  CHECK(error_of_file(add_embedding(none)) == where + "qwen3moe.expert_count is missing");
  GgufBuilder zero = metadata_of("gpt-oss");
  zero.u32("gpt-oss.expert_count", 0);
  CHECK(error_of_file(add_embedding(zero)) ==
        where + "gpt-oss.expert_count: expected a number above 0, found 0");
  GgufBuilder many = metadata_of("llama");
  many.u32("llama.expert_count", 8).u32("llama.expert_used_count", 9);
  CHECK(error_of_file(add_embedding(many)) ==
        where + "llama.expert_used_count: expected at most 8, the number of experts, found 9");
  GgufBuilder dense = metadata_of("qwen3");
  dense.u32("qwen3.expert_count", 8);
  CHECK(error_of_file(add_embedding(dense)) ==
        where + "qwen3.expert_count: expected none, or 0, found 8");
}

TEST_CASE("what mixtures have that is not computed is refused by name") {
  const std::string where = "DIR/model.gguf: metadata ";
  const auto error_with = [](const std::string& key, std::uint32_t value) {
    GgufBuilder b = key.starts_with("gpt-oss") ? gpt_oss() : mixture_of("qwen3moe");
    b.u32(key, value);
    return error_of_file(b);
  };
  CHECK(error_with("qwen3moe.expert_shared_count", 1) ==
        where + "qwen3moe.expert_shared_count: expected none, or 0, found 1");
  CHECK(error_with("qwen3moe.expert_gating_func", 2) ==
        where + "qwen3moe.expert_gating_func: expected none, or 1 (softmax), found 2");
  CHECK(error_with("qwen3moe.expert_weights_scale", 3) ==
        where + "qwen3moe.expert_weights_scale: expected none, 0 or 1, found 3");
  CHECK(error_with("gpt-oss.attention.sliding_window_pattern", 3) ==
        where + "gpt-oss.attention.sliding_window_pattern: expected none, or 2, found 3");
  CHECK(error_with("gpt-oss.rope.freq_base_swa", 5) ==
        where + "gpt-oss.rope.freq_base_swa: expected none, or that of all layers, found 5");
  GgufBuilder biased = mixture_of("llama");
  biased.counting("blk.0.attn_q.bias", {8});
  CHECK(error_of_file(biased) ==
        "DIR/model.gguf: tensor blk.0.attn_q.bias: a llama with experts has none");
  GgufBuilder windowed = mixture_of("llama");
  windowed.u32("llama.attention.sliding_window", 64);
  CHECK(error_of_file(windowed) ==
        where + "llama.attention.sliding_window: expected none, or 0, found 64");
}

TEST_CASE("tensors of experts of other shapes are refused by name") {
  const auto error_with = [](const std::string& name, const std::vector<std::uint64_t>& dims) {
    GgufBuilder b = mixture_of("qwen3moe");
    b.counting(name, dims);
    return error_of_file(b);
  };
  const std::string where = "DIR/model.gguf: tensor blk.0.ffn_up_exps";
  CHECK(error_with("blk.0.ffn_up_exps.weight", {8, 6, 3}) ==
        where + ".weight: expected [2 experts, outputs, inputs], found F32 [3, 6, 8]");
  CHECK(error_with("blk.0.ffn_up_exps.weight", {8, 12}) ==
        where + ".weight: expected [2 experts, outputs, inputs], found F32 [12, 8]");
  CHECK(error_with("blk.0.ffn_up_exps.weight", {8, 0, 2}) ==
        where + ".weight: expected [2 experts, outputs, inputs], found F32 [2, 0, 8]");
  CHECK(error_with("blk.0.ffn_up_exps.bias", {6}) ==
        where + ".bias: expected F32, F16 or BF16 [2 experts, outputs], found F32 [6]");
  GgufBuilder blocks = gpt_oss();
  blocks.tensor("blk.0.ffn_up_exps.bias", GgufType::q4_0, {32, 2}, std::string(36, '\0'));
  CHECK(error_of_file(blocks) ==
        where + ".bias: expected F32, F16 or BF16 [2 experts, outputs], found Q4_0 [2, 32]");
  GgufBuilder twice = mixture_of("qwen3moe");
  twice.counting("blk.0.ffn_up_exps.weight", {8, 6, 2}).counting("blk.0.ffn_up.1.weight", {8, 6});
  CHECK(error_of_file(twice).find("tensor model.layers.0.mlp.experts.1.up_proj.weight is in ") ==
        0);
}

}  // namespace
}  // namespace nvllm::model
