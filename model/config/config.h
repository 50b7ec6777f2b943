// ModelConfig: the description of a model, read from a checkpoint's config.json (or a GGUF file's
// metadata).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/dtype.h"
#include "kernels/pointwise/elementwise.h"
#include "layers/rope.h"

namespace nvllm::model {

// The names of a decoder's tensors in its checkpoints. The defaults are what nearly all decoders
// use; a family overrides those that differ.
struct TensorNames {
  const char* embedding = "model.embed_tokens.weight";
  const char* final_norm = "model.norm.weight";
  const char* head = "lm_head.weight";  // if embeddings are not tied

  // In a layer: this prefix, the layer's number, a dot and one of the names below.
  const char* layers = "model.layers.";
  const char* attention_norm = "input_layernorm.weight";
  const char* mlp_norm = "post_attention_layernorm.weight";
  // Norms of what a block adds to the residual stream; "": none.
  const char* post_attention_norm = "";
  const char* post_mlp_norm = "";
  const char* factor = "";  // factor of a layer's output; "": none
  // Experts in parallel with an MLP: norms of their input, of both results, and of the router;
  // scales of experts.
  const char* moe_norm = "pre_feedforward_layernorm_2.weight";
  const char* mlp_output_norm = "post_feedforward_layernorm_1.weight";
  const char* moe_output_norm = "post_feedforward_layernorm_2.weight";
  const char* router_norm = "router.scale";
  const char* expert_scales = "router.per_expert_scale";
  // Per-layer inputs (layers/per_layer_input.h): outside the layers, and within one.
  const char* per_layer_table = "model.embed_tokens_per_layer.weight";
  const char* per_layer_projection = "model.per_layer_model_projection";
  const char* per_layer_norm = "model.per_layer_projection_norm.weight";
  const char* per_layer_gate = "per_layer_input_gate";
  const char* per_layer_output = "per_layer_projection";
  const char* per_layer_output_norm = "post_per_layer_input_norm.weight";
  const char* q_norm = "self_attn.q_norm.weight";
  const char* k_norm = "self_attn.k_norm.weight";
  // Linear layers: followed by ".weight" or ".bias".
  const char* q = "self_attn.q_proj";
  const char* k = "self_attn.k_proj";
  const char* v = "self_attn.v_proj";
  const char* output = "self_attn.o_proj";
  const char* gate = "mlp.gate_proj";
  const char* up = "mlp.up_proj";
  const char* down = "mlp.down_proj";
  const char* router = "mlp.gate";
  const char* sinks = "self_attn.sinks";
  const char* shared_gate = "mlp.shared_expert.gate_proj";
  const char* shared_up = "mlp.shared_expert.up_proj";
  const char* shared_down = "mlp.shared_expert.down_proj";
  const char* shared_expert_gate = "mlp.shared_expert_gate.weight";
  // Linear attention: its linear layers, with two layouts of the input projections
  // (LinearAttentionConfig::interleaved_by_key_head, gates_by_key_head), and other tensors.
  const char* linear_qkv = "linear_attn.in_proj_qkv";
  const char* linear_z = "linear_attn.in_proj_z";
  const char* linear_b = "linear_attn.in_proj_b";
  const char* linear_a = "linear_attn.in_proj_a";
  const char* linear_qkvz = "linear_attn.in_proj_qkvz";
  const char* linear_ba = "linear_attn.in_proj_ba";
  const char* linear_output = "linear_attn.out_proj";
  const char* linear_conv = "linear_attn.conv1d.weight";
  const char* linear_a_log = "linear_attn.A_log";
  const char* linear_dt_bias = "linear_attn.dt_bias";
  const char* linear_norm = "linear_attn.norm.weight";
  // An expert: this prefix, the expert's number, a dot and one of the names below.
  const char* experts = "mlp.experts.";
  const char* expert_gate = "gate_proj";
  const char* expert_up = "up_proj";
  const char* expert_down = "down_proj";

  // "model.layers.3." + part
  std::string in_layer(std::int64_t layer, const char* part) const {
    return layers + std::to_string(layer) + "." + part;
  }
  // "model.layers.3.mlp.experts.7." + part
  std::string in_expert(std::int64_t layer, std::int64_t expert, const char* part) const {
    return in_layer(layer, experts) + std::to_string(expert) + "." + part;
  }
};

// A mixture of experts that replaces the MLP in all or some layers.
struct MoeConfig {
  std::int64_t experts = 0;  // 0: no mixture
  std::int64_t experts_per_token = 0;
  std::int64_t intermediate_size = 0;  // of an expert
  bool renormalize = false;            // divide the selected experts' probabilities by their sum
  bool bias = false;                   // on the router and experts
  std::optional<kernels::Activation> activation;  // of experts, if not the model's
  float limit = 0;                                // of clamped_swiglu
  std::int64_t shard_alignment = 64;              // layers::SparseMoeConfig
  bool expert_parallel = false;                   // layers::SparseMoeConfig
  std::int64_t shared_intermediate_size = 0;      // of a shared expert; 0: none
  std::vector<bool> layers;                       // whether a layer has experts, by index
  // Layers also have an MLP, whose result is added to the experts' (layers::MoeBesideMlpConfig);
  // the router norms its input, and experts have scales.
  bool beside_mlp = false;

  bool in_layer(std::int64_t layer) const {
    return experts > 0 && layers[static_cast<std::size_t>(layer)];
  }
  std::int64_t layer_count() const { return std::count(layers.begin(), layers.end(), true); }
};

// Linear attention (Gated DeltaNet), which replaces softmax attention in some layers.
struct LinearAttentionConfig {
  std::int64_t key_heads = 0;    // 0: no linear attention
  std::int64_t value_heads = 0;  // a multiple of key_heads
  std::int64_t key_head_dim = 0;
  std::int64_t value_head_dim = 0;
  std::int64_t conv_width = 0;
  // The input projection is one module of q, k, v and z, grouped by key head; otherwise one of q, k
  // and v, and one of z.
  bool interleaved_by_key_head = false;
  // The gates' projection is one module of b and a, grouped by key head; otherwise one each.
  bool gates_by_key_head = false;
  std::vector<bool> layers;  // whether a layer has linear attention, by index

  bool in_layer(std::int64_t layer) const {
    return key_heads > 0 && layers[static_cast<std::size_t>(layer)];
  }
  std::int64_t layer_count() const { return std::count(layers.begin(), layers.end(), true); }
};

// A decoder: embedding, layers (RMSNorm, attention, RMSNorm, gated MLP or experts), norm, LM head.
struct ModelConfig {
  std::string architecture;  // "Qwen3ForCausalLM"
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  // For layers that are not local (is_local()), if different; 0: the same.
  std::int64_t global_kv_heads = 0;
  std::int64_t global_head_dim = 0;
  std::int64_t vocab_size = 0;
  std::int64_t max_position_embeddings = 0;
  float rms_norm_eps = 1e-6f;
  float norm_weight_offset = 0;  // 1: norm tensors store the weight minus 1
  float embedding_scale = 1;     // rounded to the model's type
  float attention_scale = 0;     // factor of q · k; 0: 1 / sqrt(head_dim)
  kernels::Activation activation = kernels::Activation::silu;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool output_bias = false;  // on attention's output projection
  bool mlp_bias = false;
  bool attention_sinks = false;
  bool qk_norm = false;  // RMSNorm over each head of q and k before RoPE
  bool v_norm = false;   // the same, without weights, over each head of v
  // In layers that are not local, values are the output of k_proj before the norm of keys.
  bool global_values_are_keys = false;
  // The last kv_shared_layers layers reuse the K/V of the last earlier layer of their kind (local
  // or not).
  std::int64_t kv_shared_layers = 0;
  bool double_wide_shared_mlp = false;  // their intermediate_size is twice as large
  float logit_cap = 0;                  // logits are cap * tanh(logit / cap); 0: no cap
  std::int64_t per_layer_width = 0;     // width of per-layer inputs (layers/per_layer_input.h)
  // Attention's output is multiplied by the sigmoid of gates, which q_proj also computes: per head
  // q rows, then as many gate rows.
  bool output_gate = false;
  MoeConfig moe;
  LinearAttentionConfig linear_attention;
  // By layer, the number of tokens that a row attends to, itself included; 0: all. Empty: all, in
  // every layer.
  std::vector<std::int64_t> windows;
  layers::RopeConfig rope;
  std::int64_t partial_rotary_dim = 0;  // the leading part of a head that is rotated; 0: all
  // RoPE of local layers: those of the sliding-window kind, whatever their window is.
  std::optional<layers::RopeConfig> local_rope;
  std::vector<bool> local_layers;  // by layer; empty: none
  DType dtype = DType::bf16;       // as the checkpoint declares it
  bool text_part = false;  // the text part of a multimodal model, whose other parts are ignored
  bool skips_mtp = false;  // files may have multi-token prediction layers ("mtp.")
  float initializer_range = 0.02f;
  std::optional<std::int64_t> bos_token_id;
  std::vector<std::int64_t> eos_token_ids;
  TensorNames names;

  // Whether a layer computes K/V of its own.
  bool has_kv(std::int64_t layer) const {
    return !linear_attention.in_layer(layer) && layer < layers - kv_shared_layers;
  }
  // The layer whose K/V a layer with attention reads: itself, or the last earlier one of its kind
  // with K/V.
  std::int64_t kv_source(std::int64_t layer) const {
    std::int64_t source = layer;
    if (linear_attention.in_layer(layer)) return layer;
    while (source > 0 && (!has_kv(source) || is_local(source) != is_local(layer))) --source;
    return source;
  }
  // The number of layers with K/V of their own among the first `layer`.
  std::int64_t kv_layers_before(std::int64_t layer) const {
    std::int64_t count = 0;
    for (std::int64_t n = 0; n < layer; ++n) count += has_kv(n) ? 1 : 0;
    return count;
  }
  std::int64_t kv_layers() const { return kv_layers_before(layers); }

  std::int64_t kv_heads_of(std::int64_t layer) const {
    return global_kv_heads == 0 || is_local(layer) ? kv_heads : global_kv_heads;
  }
  std::int64_t head_dim_of(std::int64_t layer) const {
    return is_local(layer) ? head_dim : full_head_dim();
  }
  // Whether layers differ in the shape of their K/V.
  bool differs_in_heads() const { return global_kv_heads != 0 || global_head_dim != 0; }
  std::int64_t intermediate_size_of(std::int64_t layer) const {
    const bool wide = double_wide_shared_mlp && layer >= layers - kv_shared_layers;
    return wide ? 2 * intermediate_size : intermediate_size;
  }

  // For layers that are not local.
  std::int64_t full_head_dim() const { return global_head_dim > 0 ? global_head_dim : head_dim; }
  std::int64_t rotary_dim() const {
    return partial_rotary_dim > 0 ? partial_rotary_dim : full_head_dim();
  }
  std::int64_t local_rotary_dim() const {
    return partial_rotary_dim > 0 ? partial_rotary_dim : head_dim;
  }

  std::int64_t window_of(std::int64_t layer) const {
    return windows.empty() ? 0 : windows[static_cast<std::size_t>(layer)];
  }

  // The longest window of any layer if sliding-window layers can be a separate group of the KV
  // cache, which keeps no more than that; otherwise 0. Models whose layers differ in their heads,
  // share K/V, or have linear attention between them have a single group so far, and so do those in
  // which all layers have a window.
  std::int64_t window_group() const {
    const bool alike =
        !differs_in_heads() && kv_shared_layers == 0 && linear_attention.key_heads == 0;
    const bool some = std::ranges::find(windows, 0) != windows.end();
    return alike && some ? std::ranges::max(windows) : 0;
  }

  bool is_local(std::int64_t layer) const {
    return !local_layers.empty() && local_layers[static_cast<std::size_t>(layer)];
  }
  // Whether norms are separate kernels (layers::ResidualStream), which linear attention and
  // attention gates require, too.
  bool unfused_norms() const {
    return norm_weight_offset != 0 || output_gate || linear_attention.key_heads > 0 ||
           *names.post_attention_norm != '\0' || *names.post_mlp_norm != '\0';
  }

  // The number of usable positions: max_position_embeddings, or the original number times the
  // factor of linear, dynamic or YaRN scaling, if that is more.
  std::int64_t max_model_len() const;
};

// `text`: of a config.json; `overrides`: a JSON object that is merged into it (--hf-overrides), or
// empty; `where`: the file, for errors. Throws an Error that names whatever is not supported.
ModelConfig parse_config(std::string_view text, std::string_view overrides,
                         const std::string& where);

// Throws an Error unless the overrides are empty or a JSON object.
void check_overrides(std::string_view overrides);

}  // namespace nvllm::model
