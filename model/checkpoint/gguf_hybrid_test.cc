// GGUF files of models with linear attention: configurations, names, the order of heads, and what
// is refused.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "model/checkpoint/checkpoint.h"
#include "model/testing/gguf_builder.h"

namespace nvllm::model {
namespace {

// Four layers; 2 key heads of 8, and 6 value heads of 4, in linear attention.
GgufBuilder hybrid(const std::string& architecture) {
  GgufBuilder b;
  b.text("general.architecture", architecture);
  b.u32(architecture + ".block_count", 4).u32(architecture + ".context_length", 128);
  b.u32(architecture + ".embedding_length", 8).u32(architecture + ".feed_forward_length", 6);
  b.u32(architecture + ".attention.head_count", 2);
  b.u32(architecture + ".attention.head_count_kv", 1);
  b.u32(architecture + ".attention.key_length", 16);
  b.u32(architecture + ".attention.value_length", 16);
  b.f32(architecture + ".attention.layer_norm_rms_epsilon", 1e-6f);
  b.u32(architecture + ".rope.dimension_count", 4);
  b.u32(architecture + ".ssm.conv_kernel", 4).u32(architecture + ".ssm.state_size", 8);
  b.u32(architecture + ".ssm.group_count", 2).u32(architecture + ".ssm.time_step_rank", 6);
  b.u32(architecture + ".ssm.inner_size", 24);
  add_embedding(b);
  return b;
}

GgufBuilder with_experts(GgufBuilder b, const std::string& architecture) {
  b.u32(architecture + ".expert_count", 2).u32(architecture + ".expert_used_count", 1);
  b.u32(architecture + ".expert_feed_forward_length", 6);
  b.u32(architecture + ".expert_shared_feed_forward_length", 5);
  return b;
}

TEST_CASE("the configuration of a qwen35") {
  const auto config = config_of(hybrid("qwen35"));
  CHECK(config["architectures"][0] == "Qwen3_5ForCausalLM");
  CHECK(config["num_hidden_layers"] == 4);
  CHECK(config["full_attention_interval"] == 4);
  CHECK(config["linear_num_key_heads"] == 2);
  CHECK(config["linear_num_value_heads"] == 6);
  CHECK(config["linear_key_head_dim"] == 8);
  CHECK(config["linear_value_head_dim"] == 4);
  CHECK(config["linear_conv_kernel_dim"] == 4);
  CHECK(config["head_dim"] == 16);
  CHECK(config["partial_rotary_factor"] == 0.25);
  CHECK(config["norm_weight_offset"] == 0);
  CHECK(config["attention_bias"] == false);
  CHECK_FALSE(config.contains("num_experts"));
  CHECK_FALSE(config.contains("in_proj_qkvz_by_key_head"));
}

TEST_CASE("any even number of elements of a head is rotated") {
  for (const std::uint32_t dim : {48, 80, 96, 98, 112}) {
    GgufBuilder b;
    b.text("general.architecture", "qwen35");
    b.u32("qwen35.attention.key_length", dim).u32("qwen35.attention.value_length", dim);
    for (const char* key :
         {"block_count", "context_length", "embedding_length", "feed_forward_length",
          "attention.head_count", "ssm.conv_kernel", "ssm.state_size", "ssm.group_count",
          "ssm.time_step_rank", "ssm.inner_size"}) {
      b.u32(std::string("qwen35.") + key, 8);
    }
    b.f32("qwen35.attention.layer_norm_rms_epsilon", 1e-6f);
    add_embedding(b);
    for (std::uint32_t rotated = 2; rotated <= dim; rotated += 2) {
      GgufBuilder some = b;
      some.u32("qwen35.rope.dimension_count", rotated);
      const double factor = config_of(some)["partial_rotary_factor"];
      CHECK(static_cast<std::uint32_t>(dim * factor) == rotated);
    }
    CHECK(config_of(b)["partial_rotary_factor"] == 1.0);
  }
}

TEST_CASE("the configurations of a qwen35moe and a qwen3next have a shared expert") {
  const auto moe = config_of(with_experts(hybrid("qwen35moe"), "qwen35moe"));
  CHECK(moe["architectures"][0] == "Qwen3_5MoeForCausalLM");
  CHECK(moe["num_experts"] == 2);
  CHECK(moe["moe_intermediate_size"] == 6);
  CHECK(moe["shared_expert_intermediate_size"] == 5);
  CHECK_FALSE(moe.contains("in_proj_qkvz_by_key_head"));
  GgufBuilder next = with_experts(hybrid("qwen3next"), "qwen3next");
  CHECK(config_of(next)["architectures"][0] == "Qwen3NextForCausalLM");
  CHECK(config_of(next)["norm_topk_prob"] == true);
  CHECK(config_of(next)["in_proj_qkvz_by_key_head"] == false);
  next.counting("blk.0.ssm_in.weight", {8, 80});
  CHECK(config_of(next)["in_proj_qkvz_by_key_head"] == true);
}

TEST_CASE("which layers have linear attention, by a number or a list") {
  GgufBuilder interval = hybrid("qwen35");
  interval.u32("qwen35.full_attention_interval", 2);
  CHECK(config_of(interval)["full_attention_interval"] == 2);
  GgufBuilder list = hybrid("qwen35");
  list.numbers("qwen35.attention.recurrent_layers", {0, 1, 1, 0});
  CHECK(config_of(list)["layer_types"] ==
        std::vector<std::string>{"full_attention", "linear_attention", "linear_attention",
                                 "full_attention"});
}

TEST_CASE("names of linear attention, and of layers that predict further tokens") {
  GgufBuilder b = with_experts(hybrid("qwen3next"), "qwen3next");
  b.u32("qwen3next.nextn_predict_layers", 1);
  b.counting("blk.0.ssm_in.weight", {8, 80}).counting("blk.0.ssm_ba.weight", {8, 12});
  b.counting("blk.0.ssm_a", {6}).counting("blk.0.ssm_dt.bias", {6});
  b.counting("blk.0.ssm_norm.weight", {4}).counting("blk.0.ssm_out.weight", {24, 8});
  b.counting("blk.0.ssm_conv1d.weight", {4, 56}).counting("blk.0.post_attention_norm.weight", {8});
  b.counting("blk.0.ffn_gate_inp_shexp.weight", {8}).counting("blk.0.ffn_up_shexp.weight", {8, 5});
  b.counting("blk.0.ffn_gate_up_exps.weight", {8, 12, 2});
  b.counting("blk.3.attn_q.weight", {1, 2}).counting("blk.3.nextn.eh_proj.weight", {1, 2});
  const Checkpoint checkpoint = open(b);
  for (const char* name : {"linear_attn.in_proj_qkvz.weight", "linear_attn.in_proj_ba.weight",
                           "linear_attn.A_log", "linear_attn.dt_bias", "linear_attn.norm.weight",
                           "linear_attn.out_proj.weight", "linear_attn.conv1d.weight",
                           "post_attention_layernorm.weight", "mlp.shared_expert.up_proj.weight"}) {
    CAPTURE(std::string(name));
    CHECK(checkpoint.find(str("model.layers.0.", name)) != nullptr);
  }
  CHECK(checkpoint.get("model.layers.0.mlp.shared_expert_gate.weight", {1, 8}).bytes == 32);
  CHECK(checkpoint.find("mtp.blk.3.attn_q.weight") != nullptr);
  CHECK(checkpoint.find("mtp.blk.3.nextn.eh_proj.weight") != nullptr);
  CHECK(checkpoint.tensors().size() == 1 + 8 + 2 + 4 + 2);
  CHECK(parse_json(checkpoint.config_json())["num_hidden_layers"] == 3);
  const auto offset = [&](const std::string& name) {
    return checkpoint.get("model.layers.0.mlp.experts." + name + ".weight", {6, 8}).offset;
  };
  CHECK(offset("0.up_proj") - offset("0.gate_proj") == 6 * 8 * 4);
  CHECK(offset("1.gate_proj") - offset("0.gate_proj") == 12 * 8 * 4);
  CHECK(offset("1.up_proj") - offset("0.gate_proj") == 18 * 8 * 4);
}

// Where the file has each row (column) of Hugging Face's.
std::vector<std::int64_t> order_of(const std::optional<StoredOrder>& order, std::int64_t count) {
  std::vector<std::int64_t> stored;
  for (std::int64_t i = 0; i < count; ++i) stored.push_back(order ? order->stored(i) : i);
  return stored;
}

TEST_CASE("value heads of a qwen35 lie by their number among those of a key head") {
  GgufBuilder b = hybrid("qwen35");
  b.counting("blk.0.attn_qkv.weight", {8, 56}).counting("blk.0.attn_gate.weight", {8, 24});
  b.counting("blk.0.ssm_alpha.weight", {8, 6}).counting("blk.0.ssm_out.weight", {24, 8});
  b.counting("blk.0.ssm_a", {6}).counting("blk.0.ssm_dt.bias", {6});
  const Checkpoint checkpoint = open(b);
  const auto get = [&](const char* name) {
    const StoredTensor* const tensor =
        checkpoint.find(std::string("model.layers.0.linear_attn.") + name);
    REQUIRE(tensor != nullptr);
    return *tensor;
  };
  // The file has heads 0, 3, 1, 4, 2, 5.
  const std::vector<std::int64_t> heads = {0, 2, 4, 1, 3, 5};
  CHECK(order_of(get("in_proj_a.weight").row_order, 6) == heads);
  CHECK(order_of(get("A_log").column_order, 6) == heads);
  CHECK(order_of(get("dt_bias").column_order, 6) == heads);
  CHECK(get("A_log").stored_as_minus_exp);
  CHECK_FALSE(get("dt_bias").stored_as_minus_exp);
  std::vector<std::int64_t> rows;
  for (const std::int64_t head : heads) {
    for (std::int64_t i = 0; i < 4; ++i) rows.push_back(4 * head + i);
  }
  CHECK(order_of(get("in_proj_z.weight").row_order, 24) == rows);
  CHECK(order_of(get("out_proj.weight").column_order, 24) == rows);
  CHECK_FALSE(get("out_proj.weight").row_order.has_value());
  // Behind 32 rows of q and k, which are in order.
  const std::vector<std::int64_t> qkv = order_of(get("in_proj_qkv.weight").row_order, 56);
  for (std::int64_t i = 0; i < 56; ++i) {
    CHECK(qkv[static_cast<std::size_t>(i)] ==
          (i < 32 ? i : 32 + rows[static_cast<std::size_t>(i - 32)]));
  }
}

TEST_CASE("value heads of a qwen3next are in order") {
  GgufBuilder b = with_experts(hybrid("qwen3next"), "qwen3next");
  b.counting("blk.0.attn_qkv.weight", {8, 56}).counting("blk.0.ssm_out.weight", {24, 8});
  b.counting("blk.0.ssm_a", {6});
  const Checkpoint checkpoint = open(b);
  for (const char* name : {"in_proj_qkv.weight", "out_proj.weight", "A_log"}) {
    const auto* const tensor = checkpoint.find(std::string("model.layers.0.linear_attn.") + name);
    REQUIRE(tensor != nullptr);
    CHECK_FALSE((tensor->row_order || tensor->column_order));
  }
}

TEST_CASE("sizes of linear attention that make no sense are refused by name") {
  const std::string where = "DIR/model.gguf: metadata qwen35.";
  const auto error_with = [](const std::string& key, std::uint32_t value) {
    GgufBuilder b;
    b.text("general.architecture", "qwen35");
    for (const char* other :
         {"block_count", "context_length", "embedding_length", "feed_forward_length",
          "attention.head_count", "ssm.conv_kernel", "ssm.state_size", "ssm.group_count",
          "ssm.time_step_rank", "ssm.inner_size", "attention.key_length"}) {
      if (key != other) b.u32(std::string("qwen35.") + other, 8);
    }
    b.f32("qwen35.attention.layer_norm_rms_epsilon", 1e-6f);
    if (value != 77) b.u32("qwen35." + key, value);
    return error_of_file(add_embedding(b));
  };
  CHECK(error_with("rope.dimension_count", 8) == "no error");
  CHECK(error_with("ssm.group_count", 77) == where + "ssm.group_count is missing");
  CHECK(error_with("ssm.state_size", 0) ==
        where + "ssm.state_size: expected a number from 1 to 16777216, found 0");
  CHECK(error_with("ssm.time_step_rank", 12) ==
        where + "ssm.time_step_rank: expected a multiple of ssm.group_count, which is 8, found 12");
  CHECK(error_with("ssm.inner_size", 12) ==
        where + "ssm.inner_size: expected a multiple of ssm.time_step_rank, which is 8, found 12");
  CHECK(error_with("ssm.conv_kernel", 0) ==
        where + "ssm.conv_kernel: expected a number above 0, found 0");
  CHECK(error_with("rope.dimension_count", 5) ==
        where + "rope.dimension_count: expected an even number from 2 to the head size 8, found 5");
  CHECK(error_with("rope.dimension_count", 10) ==
        where +
            "rope.dimension_count: expected an even number from 2 to the head size 8, found 10");
  CHECK(
      error_with("nextn_predict_layers", 8) ==
      where +
          "nextn_predict_layers: expected a number below qwen35.block_count, which is 8, found 8");
  CHECK(error_with("full_attention_interval", 0) ==
        where + "full_attention_interval: expected a number above 0, found 0");
  CHECK(error_with("expert_count", 8) == where + "expert_count: expected none, or 0, found 8");
}

TEST_CASE("lists that do not fit the model are refused by name") {
  const std::string where = "DIR/model.gguf: metadata qwen35.";
  GgufBuilder layers = hybrid("qwen35");
  layers.numbers("qwen35.attention.recurrent_layers", {1, 1, 0});
  CHECK(error_of_file(layers) ==
        where + "attention.recurrent_layers: expected a list of 4 layers, found one of 3");
  GgufBuilder sections = hybrid("qwen35");
  sections.numbers("qwen35.rope.dimension_sections", {1, 0, 0, 1});
  CHECK(
      error_of_file(sections) ==
      where +
          "rope.dimension_sections: expected sections of 2 frequencies together, found some of 1");
  GgufBuilder fitting = hybrid("qwen35");
  fitting.numbers("qwen35.rope.dimension_sections", {1, 1, 0, 0});
  CHECK(error_of_file(fitting) == "no error");
}

TEST_CASE("tensors of linear attention of other shapes are refused by name") {
  const auto error_with = [](const std::string& name, const std::vector<std::uint64_t>& dims) {
    GgufBuilder b = hybrid("qwen35");
    b.counting(name, dims);
    return error_of_file(b);
  };
  const std::string where = "DIR/model.gguf: tensor blk.0.";
  CHECK(error_with("blk.0.attn_qkv.weight", {8, 55}) ==
        where + "attn_qkv.weight: expected 56 rows, as its heads say, found 55");
  CHECK(error_with("blk.0.ssm_out.weight", {8, 24}) ==
        where + "ssm_out.weight: expected 24 columns, as its heads say, found 8");
  CHECK(error_with("blk.0.ssm_a", {6, 1}) == where + "ssm_a: expected F32 [6], found F32 [1, 6]");
  CHECK(error_with("blk.0.ssm_dt", {6}) ==
        where + "ssm_dt: expected a tensor of a qwen35, found a name unknown here");
  GgufBuilder odd = with_experts(hybrid("qwen35moe"), "qwen35moe");
  odd.counting("blk.0.ffn_gate_up_exps.weight", {8, 7, 2});
  CHECK(error_of_file(odd) ==
        where +
            "ffn_gate_up_exps.weight: expected as many outputs of gate as of up, found [2, 7, 8]");
}

}  // namespace
}  // namespace nvllm::model
