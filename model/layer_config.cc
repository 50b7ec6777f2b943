#include "model/layer_config.h"

#include <optional>
#include <string>

namespace nvllm::model {
namespace {

layers::AttentionConfig attention_of(const ModelConfig& config, std::int64_t layer) {
  const TensorNames& names = config.names;
  layers::QkvParallelLinear::Modules qkv{.q = names.in_layer(layer, names.q), .k = {}, .v = {}};
  if (config.has_kv(layer)) {
    qkv.k = names.in_layer(layer, names.k);
    const bool from_keys = config.global_values_are_keys && !config.is_local(layer);
    if (!from_keys) qkv.v = names.in_layer(layer, names.v);
  }
  return {.qkv = qkv,
          .output = names.in_layer(layer, names.output),
          .q_norm = names.in_layer(layer, names.q_norm),
          .k_norm = names.in_layer(layer, names.k_norm),
          .hidden = config.hidden_size,
          .heads = config.heads,
          .kv_heads = config.kv_heads_of(layer),
          .head_dim = config.head_dim_of(layer),
          .qkv_bias = config.qkv_bias,
          .output_bias = config.output_bias,
          .qk_norm = config.qk_norm,
          .v_norm = config.v_norm,
          .output_gate = config.output_gate,
          .epsilon = config.rms_norm_eps,
          .norm_weight_offset = config.norm_weight_offset,
          .scale = config.attention_scale,
          .window = config.window_of(layer),
          .sinks = config.attention_sinks ? names.in_layer(layer, names.sinks) : ""};
}

layers::GatedDeltaNetConfig delta_net_of(const ModelConfig& config, std::int64_t layer) {
  const TensorNames& names = config.names;
  const LinearAttentionConfig& linear = config.linear_attention;
  const bool interleaved_by_key_head = linear.interleaved_by_key_head,
             gates_by_key_head = linear.gates_by_key_head;
  const auto in = [&](const char* name) { return names.in_layer(layer, name); };
  const auto if_used = [&](bool used, const char* name) { return used ? in(name) : std::string(); };
  return {.qkv = if_used(!interleaved_by_key_head, names.linear_qkv),
          .z = if_used(!interleaved_by_key_head, names.linear_z),
          .b = if_used(!gates_by_key_head, names.linear_b),
          .a = if_used(!gates_by_key_head, names.linear_a),
          .qkvz = if_used(interleaved_by_key_head, names.linear_qkvz),
          .ba = if_used(gates_by_key_head, names.linear_ba),
          .output = in(names.linear_output),
          .conv = in(names.linear_conv),
          .a_log = in(names.linear_a_log),
          .dt_bias = in(names.linear_dt_bias),
          .norm = in(names.linear_norm),
          .hidden = config.hidden_size,
          .key_heads = linear.key_heads,
          .value_heads = linear.value_heads,
          .dk = linear.key_head_dim,
          .dv = linear.value_head_dim,
          .conv_width = linear.conv_width,
          .epsilon = config.rms_norm_eps};
}

layers::MlpConfig mlp_of(const ModelConfig& config, std::int64_t layer) {
  const TensorNames& names = config.names;
  return {.gate = names.in_layer(layer, names.gate),
          .up = names.in_layer(layer, names.up),
          .down = names.in_layer(layer, names.down),
          .hidden = config.hidden_size,
          .intermediate = config.intermediate_size_of(layer),
          .bias = config.mlp_bias,
          .activation = config.activation};
}

layers::SparseMoeConfig moe_of(const ModelConfig& config, std::int64_t layer) {
  const TensorNames& names = config.names;
  const MoeConfig& mixture = config.moe;
  layers::SparseMoeConfig moe{.router = names.in_layer(layer, names.router),
                              .experts = {},
                              .hidden = config.hidden_size,
                              .intermediate = mixture.intermediate_size,
                              .experts_per_token = mixture.experts_per_token,
                              .renormalize = mixture.renormalize,
                              .bias = mixture.bias,
                              .activation = mixture.activation.value_or(config.activation),
                              .limit = mixture.limit,
                              .expert_parallel = mixture.expert_parallel,
                              .shard_alignment = mixture.shard_alignment,
                              .shared = {.gate = names.in_layer(layer, names.shared_gate),
                                         .up = names.in_layer(layer, names.shared_up),
                                         .down = names.in_layer(layer, names.shared_down)},
                              .shared_gate = names.in_layer(layer, names.shared_expert_gate),
                              .shared_intermediate = mixture.shared_intermediate_size};
  if (mixture.beside_mlp) {
    moe.router_norm = names.in_layer(layer, names.router_norm);
    moe.expert_scales = names.in_layer(layer, names.expert_scales);
    moe.epsilon = config.rms_norm_eps;
  }
  for (std::int64_t expert = 0; expert < mixture.experts; ++expert) {
    moe.experts.push_back({.gate = names.in_expert(layer, expert, names.expert_gate),
                           .up = names.in_expert(layer, expert, names.expert_up),
                           .down = names.in_expert(layer, expert, names.expert_down)});
  }
  return moe;
}

layers::MoeBesideMlpConfig beside_mlp_of(const ModelConfig& config, std::int64_t layer) {
  const TensorNames& names = config.names;
  return {.norm = names.in_layer(layer, names.moe_norm),
          .post_mlp_norm = names.in_layer(layer, names.mlp_output_norm),
          .moe_result_norm = names.in_layer(layer, names.moe_output_norm)};
}

layers::PerLayerInputConfig per_layer_input_of(const ModelConfig& config, std::int64_t layer) {
  const TensorNames& names = config.names;
  return {.gate = names.in_layer(layer, names.per_layer_gate),
          .projection = names.in_layer(layer, names.per_layer_output),
          .result_norm = names.in_layer(layer, names.per_layer_output_norm),
          .hidden = config.hidden_size,
          .width = config.per_layer_width,
          .epsilon = config.rms_norm_eps,
          .activation = config.activation};
}

}  // namespace

layers::DecoderLayerConfig layer_config(const ModelConfig& config, std::int64_t layer) {
  const TensorNames& names = config.names;
  const bool has_experts = config.moe.in_layer(layer);
  const auto optional_name = [&](const char* name) {
    return *name == '\0' ? std::string() : names.in_layer(layer, name);
  };
  return {.attention = attention_of(config, layer),
          .mlp = mlp_of(config, layer),
          .delta_net = config.linear_attention.in_layer(layer)
                           ? std::optional(delta_net_of(config, layer))
                           : std::nullopt,
          .moe = has_experts ? std::optional(moe_of(config, layer)) : std::nullopt,
          .beside_mlp = has_experts && config.moe.beside_mlp
                            ? std::optional(beside_mlp_of(config, layer))
                            : std::nullopt,
          .per_layer_input = config.per_layer_width > 0
                                 ? std::optional(per_layer_input_of(config, layer))
                                 : std::nullopt,
          .attention_norm = names.in_layer(layer, names.attention_norm),
          .mlp_norm = names.in_layer(layer, names.mlp_norm),
          .post_attention_norm = optional_name(names.post_attention_norm),
          .post_mlp_norm = optional_name(names.post_mlp_norm),
          .factor = optional_name(names.factor),
          .epsilon = config.rms_norm_eps,
          .norm_weight_offset = config.norm_weight_offset};
}

}  // namespace nvllm::model
