// GGUF files of Gemma 3 and Gemma 4, as llama.cpp's converter makes them.
#include <utility>

#include "base/text.h"
#include "model/testing/gguf_writer.h"

namespace nvllm::model {
namespace {

using Json = nlohmann::json;

class GemmaConverter : private GgufWriter {
 public:
  GemmaConverter(const Checkpoint& checkpoint, const GgufConversion& conversion)
      : GgufWriter(checkpoint, conversion), gemma4_(config_["model_type"] == "gemma4_text") {
    architecture_ = gemma4_ ? "gemma4" : "gemma3";
  }

  std::string convert() {
    add_metadata();
    if (gemma4_) add_gemma4_metadata();
    add("token_embd.weight", "model.embed_tokens.weight");
    add_norm("output_norm.weight", "model.norm.weight");
    add_optional("per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight");
    add_optional("per_layer_model_proj.weight", "model.per_layer_model_projection.weight");
    add_optional("per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight");
    for (std::int64_t layer = 0; layer < integer("num_hidden_layers"); ++layer) add_layer(layer);
    return builder_.file();
  }

 private:
  // 0: absent, or null.
  std::int64_t integer_or_0(const char* key) const {
    return config_.contains(key) && !config_[key].is_null() ? integer(key) : 0;
  }

  void numbers(const std::string& key, const std::vector<std::int32_t>& values) {
    builder_.numbers(architecture_ + key, values);
  }

  void add_metadata() {
    builder_.text("general.architecture", architecture_);
    u32(".block_count", integer("num_hidden_layers"));
    u32(".context_length", integer("max_position_embeddings"));
    u32(".embedding_length", integer("hidden_size"));
    u32(".attention.head_count", integer("num_attention_heads"));
    f32(".attention.layer_norm_rms_epsilon", config_["rms_norm_eps"]);
    u32(".attention.sliding_window", integer("sliding_window"));
    if (gemma4_) return;
    u32(".feed_forward_length", integer("intermediate_size"));
    u32(".attention.head_count_kv", integer("num_key_value_heads"));
    u32(".attention.key_length", integer("head_dim"));
    u32(".attention.value_length", integer("head_dim"));
    f32(".rope.freq_base", config_["rope_theta"]);
  }

  bool is_local(std::int64_t layer) const {
    return config_["layer_types"][static_cast<std::size_t>(layer)] == "sliding_attention";
  }

  void add_gemma4_metadata() {
    const std::int64_t layers = integer("num_hidden_layers"), global = integer("global_head_dim");
    const Json& rope = config_["rope_parameters"];
    f32(".rope.freq_base", rope["full_attention"]["rope_theta"]);
    f32(".rope.freq_base_swa", rope["sliding_attention"]["rope_theta"]);
    u32(".attention.key_length", global);
    u32(".attention.value_length", global);
    u32(".attention.key_length_swa", integer("head_dim"));
    u32(".attention.value_length_swa", integer("head_dim"));
    u32(".rope.dimension_count", global);
    u32(".rope.dimension_count_swa", integer("head_dim"));
    u32(".attention.shared_kv_layers", integer("num_kv_shared_layers"));
    u32(".embedding_length_per_layer_input", integer("hidden_size_per_layer_input"));
    f32(".final_logit_softcapping", config_["final_logit_softcapping"]);
    std::vector<std::int32_t> local, kv_heads, widths;
    const std::int64_t shared = layers - integer("num_kv_shared_layers");
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      local.push_back(is_local(layer) ? 1 : 0);
      kv_heads.push_back(
          static_cast<std::int32_t>(is_local(layer) ? integer("num_key_value_heads")
                                                    : integer_or_0("num_global_key_value_heads")));
      widths.push_back(
          static_cast<std::int32_t>(integer("intermediate_size") * (layer < shared ? 1 : 2)));
    }
    numbers(".attention.sliding_window_pattern", local);
    if (integer_or_0("num_global_key_value_heads") != 0) {
      numbers(".attention.head_count_kv", kv_heads);
    } else {
      u32(".attention.head_count_kv", integer("num_key_value_heads"));
    }
    if (config_["use_double_wide_mlp"]) {
      numbers(".feed_forward_length", widths);
    } else {
      u32(".feed_forward_length", integer("intermediate_size"));
    }
    if (config_["enable_moe_block"]) {
      u32(".expert_count", integer("num_experts"));
      u32(".expert_used_count", integer("top_k_experts"));
      u32(".expert_feed_forward_length", integer("moe_intermediate_size"));
    }
    add_rope_factors(
        static_cast<std::int64_t>(rope["full_attention"]["partial_rotary_factor"].get<double>() *
                                  static_cast<double>(global) / 2));
  }

  void add_rope_factors(std::int64_t rotated) {
    GgufValues factors{{integer("global_head_dim") / 2}, {}};
    for (std::int64_t i = 0; i < factors.shape[0]; ++i) {
      factors.values.push_back(i < rotated ? 1.0f : 1e30f);
    }
    add("rope_freqs.weight", factors);
  }

  // Weights of Gemma 3's norms are 1 less.
  void add_norm(const std::string& name, const std::string& theirs) {
    GgufWriter::add_norm(name, theirs, gemma4_ ? 0 : 1);
  }

  void add_layer(std::int64_t layer) {
    const std::string ours = str("blk.", layer, "."), theirs = str("model.layers.", layer, ".");
    for (const auto& [our, their] : {std::pair{"attn_norm", "input_layernorm"},
                                     {"post_attention_norm", "post_attention_layernorm"},
                                     {"ffn_norm", "pre_feedforward_layernorm"},
                                     {"post_ffw_norm", "post_feedforward_layernorm"},
                                     {"pre_ffw_norm_2", "pre_feedforward_layernorm_2"},
                                     {"post_ffw_norm_1", "post_feedforward_layernorm_1"},
                                     {"post_ffw_norm_2", "post_feedforward_layernorm_2"},
                                     {"attn_q_norm", "self_attn.q_norm"},
                                     {"attn_k_norm", "self_attn.k_norm"},
                                     {"post_norm", "post_per_layer_input_norm"}}) {
      add_norm(str(ours, our, ".weight"), str(theirs, their, ".weight"));
    }
    for (const auto& [our, their] : {std::pair{"attn_q", "self_attn.q_proj"},
                                     {"attn_k", "self_attn.k_proj"},
                                     {"attn_v", "self_attn.v_proj"},
                                     {"attn_output", "self_attn.o_proj"},
                                     {"ffn_gate", "mlp.gate_proj"},
                                     {"ffn_up", "mlp.up_proj"},
                                     {"ffn_down", "mlp.down_proj"},
                                     {"ffn_gate_inp", "router.proj"},
                                     {"inp_gate", "per_layer_input_gate"},
                                     {"proj", "per_layer_projection"}}) {
      add_optional(str(ours, our, ".weight"), str(theirs, their, ".weight"));
    }
    add_optional(ours + "layer_output_scale.weight", theirs + "layer_scalar");
    add_optional(ours + "ffn_gate_inp.scale", theirs + "router.scale");
    add_optional(ours + "ffn_down_exps.scale", theirs + "router.per_expert_scale");
    if (integer_or_0("num_experts") == 0) return;
    if (conversion_.joint_gate_up) {
      add_experts(ours + "ffn_gate_up_exps.weight", theirs, {"gate_proj", "up_proj"});
    } else {
      add_experts(ours + "ffn_gate_exps.weight", theirs, {"gate_proj"});
      add_experts(ours + "ffn_up_exps.weight", theirs, {"up_proj"});
    }
    add_experts(ours + "ffn_down_exps.weight", theirs, {"down_proj"});
  }

  void add_experts(const std::string& name, const std::string& theirs,
                   const std::vector<std::string>& modules) {
    GgufValues all;
    for (std::int64_t expert = 0; expert < integer("num_experts"); ++expert) {
      std::int64_t rows = 0;
      for (const std::string& module : modules) {
        const GgufValues one = read(str(theirs, "experts.", expert, ".", module, ".weight"));
        rows += one.shape[0];
        all.shape = {integer("num_experts"), rows, one.shape[1]};
        all.values.insert(all.values.end(), one.values.begin(), one.values.end());
      }
    }
    add(name, all);
  }

  const bool gemma4_;
};

}  // namespace

std::string gguf_of_gemma(const Checkpoint& checkpoint, const GgufConversion& conversion) {
  return GemmaConverter(checkpoint, conversion).convert();
}

}  // namespace nvllm::model
