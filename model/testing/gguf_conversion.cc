#include "model/testing/gguf_conversion.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "base/text.h"
#include "model/testing/gguf_writer.h"

namespace nvllm::model {
namespace {

// The rows of each head, 0, d/2, 1, d/2 + 1, ...
void permute(GgufValues& tensor, std::int64_t heads) {
  const std::int64_t d = tensor.shape[0] / heads, columns = tensor.shape[1];
  const std::vector<float> before = tensor.values;
  for (std::int64_t row = 0; row < tensor.shape[0]; ++row) {
    const std::int64_t in_head = row % d, half = d / 2;
    const std::int64_t to = row - in_head + in_head % half * 2 + in_head / half;
    std::copy_n(before.begin() + row * columns, columns, tensor.values.begin() + to * columns);
  }
}

class Converter : private GgufWriter {
 public:
  Converter(const Checkpoint& checkpoint, const GgufConversion& conversion)
      : GgufWriter(checkpoint, conversion) {
    const std::string type = config_["model_type"];
    mixtral_ = type == "mixtral", gpt_oss_ = type == "gpt_oss";
    hybrid_ = config_.contains("linear_num_key_heads");
    permuted_ = mixtral_ || type == "llama" || type == "mistral";
    has_experts_ = config_.contains("num_experts_per_tok");
    architecture_ = permuted_                    ? "llama"
                    : gpt_oss_                   ? "gpt-oss"
                    : type == "qwen3_moe"        ? "qwen3moe"
                    : type == "qwen3_next"       ? "qwen3next"
                    : type == "qwen3_5_text"     ? "qwen35"
                    : type == "qwen3_5_moe_text" ? "qwen35moe"
                                                 : type;
  }

  std::string convert() {
    add_metadata();
    add("token_embd.weight", "model.embed_tokens.weight");
    add_norm("output_norm.weight", "model.norm.weight");
    add_optional("output.weight", "lm_head.weight");
    for (std::int64_t layer = 0; layer < integer("num_hidden_layers"); ++layer) {
      const std::string conv = str("model.layers.", layer, ".linear_attn.conv1d.weight");
      add_norms(layer);
      if (has(conv)) {
        add_linear_attention(layer);
      } else {
        add_attention(layer);
      }
      add_mlp(layer);
    }
    if (conversion_.with_mtp) add_mtp();
    return builder_.file();
  }

 private:
  void add_metadata() {
    builder_.text("general.architecture", architecture_);
    u32(".block_count", integer("num_hidden_layers") + (conversion_.with_mtp ? 1 : 0));
    if (conversion_.with_mtp) u32(".nextn_predict_layers", 1);
    u32(".context_length", integer("max_position_embeddings"));
    u32(".embedding_length", integer("hidden_size"));
    if (config_.contains("intermediate_size")) {
      u32(".feed_forward_length", integer("intermediate_size"));
    }
    u32(".attention.head_count", integer("num_attention_heads"));
    u32(".attention.head_count_kv", integer("num_key_value_heads"));
    f32(".attention.layer_norm_rms_epsilon", config_["rms_norm_eps"]);
    f32(".rope.freq_base", config_.contains("rope_theta")
                               ? config_["rope_theta"]
                               : config_["rope_parameters"]["rope_theta"]);
    if (has_experts_) {
      u32(".expert_count", integer(mixtral_ || gpt_oss_ ? "num_local_experts" : "num_experts"));
      u32(".expert_used_count", integer("num_experts_per_tok"));
    }
    if (mixtral_) return;
    if (config_.contains("head_dim")) {
      u32(".attention.key_length", integer("head_dim"));
      u32(".attention.value_length", integer("head_dim"));
    }
    if (has_experts_) {
      u32(".expert_feed_forward_length",
          integer(gpt_oss_ ? "intermediate_size" : "moe_intermediate_size"));
    }
    if (hybrid_) add_hybrid_metadata();
    if (gpt_oss_) add_gpt_oss_metadata();
  }

  void add_hybrid_metadata() {
    u32(".ssm.conv_kernel", integer("linear_conv_kernel_dim"));
    u32(".ssm.state_size", integer("linear_key_head_dim"));
    u32(".ssm.group_count", integer("linear_num_key_heads"));
    u32(".ssm.time_step_rank", integer("linear_num_value_heads"));
    u32(".ssm.inner_size", integer("linear_value_head_dim") * integer("linear_num_value_heads"));
    u32(".full_attention_interval", integer("full_attention_interval"));
    u32(".rope.dimension_count", integer("head_dim") / 4);
    if (architecture_ != "qwen3next") {
      const auto n = static_cast<std::int32_t>(integer("head_dim") / 8);
      builder_.numbers(architecture_ + ".rope.dimension_sections",
                       {n - 2 * (n / 3), n / 3, n / 3, 0});
    }
    if (architecture_ != "qwen35") {
      u32(".expert_shared_feed_forward_length", integer("shared_expert_intermediate_size"));
    }
  }

  void add_gpt_oss_metadata() {
    u32(".attention.sliding_window", integer("sliding_window"));
    const auto& rope = config_["rope_scaling"];
    builder_.text(architecture_ + ".rope.scaling.type", "yarn");
    f32(".rope.scaling.factor", rope["factor"]);
    u32(".rope.scaling.original_context_length",
        rope["original_max_position_embeddings"].get<std::int64_t>());
    f32(".rope.scaling.yarn_beta_fast", rope["beta_fast"]);
    f32(".rope.scaling.yarn_beta_slow", rope["beta_slow"]);
  }

  // Weights of hybrids' norms are 1 less.
  void add_norm(const std::string& name, const std::string& theirs) {
    GgufWriter::add_norm(name, theirs, hybrid_ ? 1 : 0);
  }

  void add_norms(std::int64_t layer) {
    const std::string ours = str("blk.", layer, "."), theirs = str("model.layers.", layer, ".");
    add_norm(ours + "attn_norm.weight", theirs + "input_layernorm.weight");
    add_norm(ours + (gpt_oss_ || hybrid_ ? "post_attention_norm.weight" : "ffn_norm.weight"),
             theirs + "post_attention_layernorm.weight");
    for (const char* const norm : {"q_norm", "k_norm"}) {
      add_norm(str(ours, "attn_", norm, ".weight"), str(theirs, "self_attn.", norm, ".weight"));
    }
  }

  // Value-head rows after `first` others: the first of each key head, then the second.
  GgufValues tiled(const GgufValues& tensor, std::int64_t first, std::int64_t of_head) const {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(first));
    std::iota(rows.begin(), rows.end(), 0);
    const std::int64_t keys = config_["linear_num_key_heads"];
    const std::int64_t group = config_["linear_num_value_heads"].get<std::int64_t>() / keys;
    for (std::int64_t n = 0; n < group; ++n) {
      for (std::int64_t key = 0; key < keys; ++key) {
        for (std::int64_t i = 0; i < of_head; ++i) {
          rows.push_back(first + (key * group + n) * of_head + i);
        }
      }
    }
    return rows_of(tensor, rows);
  }

  // q, k and v, and z, of one projection that has them by key head.
  void add_qkvz(const std::string& ours, const GgufValues& qkvz) {
    const std::int64_t keys = integer("linear_num_key_heads"), dk = integer("linear_key_head_dim");
    const std::int64_t of_head = qkvz.shape[0] / keys, values = (of_head - 2 * dk) / 2;
    std::vector<std::int64_t> qkv, z;
    const auto add_part = [&](std::vector<std::int64_t>& rows, std::int64_t begin,
                              std::int64_t size) {
      for (std::int64_t key = 0; key < keys; ++key) {
        for (std::int64_t i = 0; i < size; ++i) rows.push_back(key * of_head + begin + i);
      }
    };
    add_part(qkv, 0, dk), add_part(qkv, dk, dk), add_part(qkv, 2 * dk, values);
    add_part(z, 2 * dk + values, values);
    add(ours + "attn_qkv.weight", rows_of(qkvz, qkv));
    add(ours + "attn_gate.weight", rows_of(qkvz, z));
  }

  void add_linear_attention(std::int64_t layer) {
    const std::string ours = str("blk.", layer, "."),
                      theirs = str("model.layers.", layer, ".linear_attn.");
    const auto get = [&](const char* name) { return read(theirs + name); };
    const std::int64_t dv = integer("linear_value_head_dim");
    const std::int64_t qk = 2 * integer("linear_num_key_heads") * integer("linear_key_head_dim");
    GgufValues decay = get("A_log");
    for (float& value : decay.values) value = -std::exp(value);
    add(ours + "ssm_norm.weight", theirs + "norm.weight");
    if (architecture_ == "qwen3next") {
      if (conversion_.joint_qkvz) {
        add(ours + "ssm_in.weight", theirs + "in_proj_qkvz.weight");
      } else {
        add_qkvz(ours, get("in_proj_qkvz.weight"));
      }
      add(ours + "ssm_ba.weight", theirs + "in_proj_ba.weight");
      add(ours + "ssm_conv1d.weight", theirs + "conv1d.weight");
      add(ours + "ssm_out.weight", theirs + "out_proj.weight");
      add(ours + "ssm_a", decay);
      add(ours + "ssm_dt.bias", theirs + "dt_bias");
      return;
    }
    add(ours + "attn_qkv.weight", tiled(get("in_proj_qkv.weight"), qk, dv));
    add(ours + "attn_gate.weight", tiled(get("in_proj_z.weight"), 0, dv));
    add(ours + "ssm_beta.weight", tiled(get("in_proj_b.weight"), 0, 1));
    add(ours + "ssm_alpha.weight", tiled(get("in_proj_a.weight"), 0, 1));
    add(ours + "ssm_conv1d.weight", tiled(get("conv1d.weight"), qk, dv));
    add(ours + "ssm_out.weight", transposed(tiled(transposed(get("out_proj.weight")), 0, dv)));
    add(ours + "ssm_a", tiled(decay, 0, 1));
    add(ours + "ssm_dt.bias", tiled(get("dt_bias"), 0, 1));
  }

  // Some of its tensors: what they hold is not looked at.
  void add_mtp() {
    const std::string ours = str("blk.", integer("num_hidden_layers"), ".");
    builder_.counting(ours + "attn_norm.weight", {4});
    builder_.counting(ours + "attn_q.weight", {4, 4});
    builder_.counting(ours + "nextn.eh_proj.weight", {8, 4});
  }

  void add_attention(std::int64_t layer) {
    const std::string ours = str("blk.", layer, "."), theirs = str("model.layers.", layer, ".");
    for (const auto& [our, their] : {std::pair{"attn_q", "q_proj"},
                                     {"attn_k", "k_proj"},
                                     {"attn_v", "v_proj"},
                                     {"attn_output", "o_proj"}}) {
      GgufValues weight = read(theirs + "self_attn." + their + ".weight");
      if (permuted_ && their[0] == 'q') permute(weight, integer("num_attention_heads"));
      if (permuted_ && their[0] == 'k') permute(weight, integer("num_key_value_heads"));
      add(ours + our + ".weight", weight);
      add_optional(ours + our + ".bias", theirs + "self_attn." + their + ".bias");
    }
    add_optional(ours + "attn_sinks.weight", theirs + "self_attn.sinks");
  }

  void add_mlp(std::int64_t layer) {
    const std::string ours = str("blk.", layer, "."),
                      mlp = str("model.layers.", layer, mixtral_ ? ".block_sparse_moe." : ".mlp.");
    const std::string router = mlp + (gpt_oss_ ? "router" : "gate");
    const bool sparse = has(router + ".weight");
    if (sparse) {
      add(ours + "ffn_gate_inp.weight", router + ".weight");
      add_optional(ours + "ffn_gate_inp.bias", router + ".bias");
    }
    if (hybrid_ && sparse) add_shared_expert(ours, mlp);
    for (const auto& [our, their, in_mixtral] : {std::tuple{"ffn_gate", "gate_proj", "w1"},
                                                 {"ffn_up", "up_proj", "w3"},
                                                 {"ffn_down", "down_proj", "w2"}}) {
      if (!sparse) {
        add(ours + our + ".weight", mlp + their + ".weight");
        continue;
      }
      if (conversion_.joint_gate_up && std::string_view(our) != "ffn_down") {
        if (std::string_view(our) == "ffn_gate") add_joint_gate_up(ours, mlp + "experts.");
        continue;
      }
      const std::string module = std::string(".") + (mixtral_ ? in_mixtral : their);
      add_experts(ours + our, mlp + "experts.", module + ".weight", ".weight");
      if (gpt_oss_) add_experts(ours + our, mlp + "experts.", module + ".bias", ".bias");
    }
  }

  void add_shared_expert(const std::string& ours, const std::string& mlp) {
    GgufValues gate = read(mlp + "shared_expert_gate.weight");
    gate.shape = {gate.shape[1]};
    add(ours + "ffn_gate_inp_shexp.weight", gate);
    add(ours + "ffn_gate_shexp.weight", mlp + "shared_expert.gate_proj.weight");
    add(ours + "ffn_up_shexp.weight", mlp + "shared_expert.up_proj.weight");
    add(ours + "ffn_down_shexp.weight", mlp + "shared_expert.down_proj.weight");
  }

  void add_joint_gate_up(const std::string& ours, const std::string& prefix) {
    GgufValues all;
    std::int64_t expert = 0;
    for (; has(str(prefix, expert, ".up_proj.weight")); ++expert) {
      for (const char* const module : {".gate_proj.weight", ".up_proj.weight"}) {
        const GgufValues one = read(str(prefix, expert, module));
        all.shape = {2 * one.shape[0], one.shape[1]};
        all.values.insert(all.values.end(), one.values.begin(), one.values.end());
      }
    }
    all.shape.insert(all.shape.begin(), expert);
    add(ours + "ffn_gate_up_exps.weight", all);
  }

  void add_experts(const std::string& ours, const std::string& prefix, const std::string& module,
                   const char* ending) {
    GgufValues all;
    std::int64_t expert = 0;
    for (; has(str(prefix, expert, module)); ++expert) {
      const GgufValues one = read(str(prefix, expert, module));
      if (conversion_.tensor_per_expert) add(str(ours, ".", expert, ending), one);
      all.shape = one.shape;
      all.values.insert(all.values.end(), one.values.begin(), one.values.end());
    }
    all.shape.insert(all.shape.begin(), expert);
    if (!conversion_.tensor_per_expert) add(ours + "_exps" + ending, all);
  }

  bool mixtral_ = false, gpt_oss_ = false, hybrid_ = false;
  bool permuted_ = false, has_experts_ = false;
};

}  // namespace

std::string gguf_of(const Checkpoint& checkpoint, const GgufConversion& conversion) {
  const std::string type = text_config_of(checkpoint)["model_type"];
  if (type.starts_with("gemma")) return gguf_of_gemma(checkpoint, conversion);
  return Converter(checkpoint, conversion).convert();
}

}  // namespace nvllm::model
