// What a decoder consists of: its layers as the configuration describes them, their parameters, and
// the memory that it takes beside its weights.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "base/check.h"
#include "base/text.h"
#include "model/decoder.h"

namespace nvllm::model {
namespace {

using layers::Scratch;

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

// As a number of the type in which embeddings are multiplied by it.
float rounded(float value, DType dtype) {
  switch (dtype) {
    case DType::bf16: return to_float(from_float<Bf16>(value));
    case DType::f16: return to_float(from_float<F16>(value));
    default: return value;
  }
}

// Whether GEMMs norm the residual stream that they read, and add to it.
bool norms_are_fused(const Decoder& decoder, const DecoderLimits& limits) {
  return decoder.shard().ranks == 1 && !decoder.config().unfused_norms() && !limits.invariant &&
         !decoder.shard().tp_invariant;
}

// Rows of a deferred norm's sums of squares; where GEMMs do not norm, none is deferred.
std::int64_t squares_of(const Decoder& decoder, const DecoderLimits& limits) {
  return norms_are_fused(decoder, limits) ? decoder.config().hidden_size / kernels::kSquaresColumns
                                          : 0;
}

// Columns of a row of logits; none on stages without the head.
std::int64_t logit_columns(const Decoder& decoder) {
  return decoder.has_head() ? decoder.head().stride() : 0;
}

// Columns of all per-layer inputs together.
std::int64_t per_layer_columns(const Decoder& decoder) {
  return decoder.config().layers * decoder.config().per_layer_width;
}

}  // namespace

bool Decoder::quantized() const {
  return std::ranges::any_of(parameters_, [](const layers::Parameter* parameter) {
    return parameter->quantization.has_value();
  });
}

// The norm is on every stage: its weight is small, and by it the parts that a stage's ranks have
// added last are summed (layers::sum).
Decoder::Decoder(const ModelConfig& config, layers::Shard shard, DType dtype, layers::Stage stage)
    : config_(config),
      shard_(shard),
      stage_(stage),
      own_layers_(layers::layers_of(config.layers, stage)),
      dtype_(dtype),
      embedding_("embedding", config.names.embedding, config.vocab_size, config.hidden_size, shard,
                 rounded(config.embedding_scale, dtype)),
      norm_("norm", config.names.final_norm, config.hidden_size, config.rms_norm_eps,
            config.norm_weight_offset) {
  NVLLM_CHECK(stage.stages == 1 || (config.per_layer_width == 0 && config.kv_shared_layers == 0),
              "what crosses from layer to layer beside the residual stream stays in one stage");
  if (config.per_layer_width > 0) {
    const TensorNames& names = config.names;
    const float scale = std::sqrt(static_cast<float>(config.per_layer_width));
    per_layer_.emplace("per_layer",
                       layers::PerLayerEmbeddingConfig{.table = names.per_layer_table,
                                                       .projection = names.per_layer_projection,
                                                       .norm = names.per_layer_norm,
                                                       .vocabulary = config.vocab_size,
                                                       .hidden = config.hidden_size,
                                                       .layers = config.layers,
                                                       .width = config.per_layer_width,
                                                       .table_scale = rounded(scale, dtype),
                                                       .epsilon = config.rms_norm_eps},
                       shard);
  }
  const std::int64_t kv_before = config.kv_layers_before(own_layers_.begin);
  for (std::int64_t n = own_layers_.begin; n < own_layers_.end; ++n) {
    layers_.emplace_back(str("layers.", n), layer_config(config, n), shard);
    kv_layers_.push_back(config.kv_layers_before(config.kv_source(n)) - kv_before);
  }
  if (stage.last() && config.tied_embeddings) {
    head_.emplace(embedding_, config.logit_cap);
  } else if (stage.last()) {
    head_.emplace("head", config.names.head, config.vocab_size, config.hidden_size, shard,
                  config.logit_cap);
  }
  declare_parameters();
}

// Tied embeddings are on both ends.
void Decoder::declare_parameters() {
  if (stage_.first() || (stage_.last() && config_.tied_embeddings)) {
    embedding_.declare(parameters_);
  }
  if (per_layer_) per_layer_->declare(parameters_);
  for (layers::DecoderLayer& layer : layers_) layer.declare(parameters_);
  norm_.declare(parameters_);
  if (head_) head_->declare(parameters_);
}

std::int64_t Decoder::own_kv_layers() const {
  return config_.kv_layers_before(own_layers_.end) - config_.kv_layers_before(own_layers_.begin);
}

// The layers use it in turn, then the rows of the residual stream whose logits are wanted, with the
// last layer's MLP block.
std::size_t Decoder::scratch_bytes(const DecoderLimits& limits) const {
  std::size_t layer = 0;  // the largest: some may have experts, and others an MLP
  for (const layers::DecoderLayer& each : layers_) {
    layer = std::max(layer, each.scratch_bytes(limits.rows_at_once(), dtype_));
  }
  if (per_layer_) {
    layer = std::max(layer, per_layer_->scratch_bytes(limits.rows_at_once(), dtype_));
  }
  if (!head_) return layer;
  return std::max(layer, 3 * Scratch::bytes_of(dtype_, limits.logit_rows, config_.hidden_size) +
                             layers_.back().mlp_scratch_bytes(
                                 std::min(limits.logit_rows, kMaxSelectedRows), dtype_));
}

kvcache::BlockShape Decoder::block_shape(std::int64_t block_size, DType dtype) const {
  kvcache::BlockShape shape{.layers = own_kv_layers(),
                            .block_size = block_size,
                            .kv_heads = heads().kv.size(),
                            .head_dim = config_.head_dim,
                            .dtype = dtype};
  if (!config_.differs_in_heads() || shape.layers == 0) return shape;
  const auto elements = [](const kvcache::BlockShape::Heads& heads) {
    return heads.kv_heads * heads.head_dim;
  };
  for (std::int64_t n = own_layers_.begin; n < own_layers_.end; ++n) {
    if (!config_.has_kv(n)) continue;
    const layers::DecoderLayer& layer = layers_[static_cast<std::size_t>(n - own_layers_.begin)];
    shape.by_layer.push_back({layer.heads().kv.size(), layer.head_dim()});
  }
  const auto largest = *std::ranges::max_element(shape.by_layer, {}, elements);
  shape.kv_heads = largest.kv_heads, shape.head_dim = largest.head_dim;
  return shape;
}

std::int64_t Decoder::max_head_values() const {
  std::int64_t values = 0;
  for (const layers::DecoderLayer& layer : layers_) {
    values = std::max(values, layer.heads().q.size() * layer.head_dim());
  }
  return values;
}

std::size_t Decoder::rope_bytes(std::int64_t positions) const {
  const std::int64_t local = config_.local_rope ? config_.local_rotary_dim() : 0;
  return static_cast<std::size_t>(positions * (config_.rotary_dim() + local)) * sizeof(float);
}

std::size_t DecoderMemory::bytes(const Decoder& decoder, const DecoderLimits& limits) {
  const auto stream = [&](std::int64_t rows) {
    return Scratch::bytes_of(decoder.dtype(), rows, decoder.config().hidden_size);
  };
  return stream(limits.rows) +
         stream(limits.rows_at_once()) * (norms_are_fused(decoder, limits) ? 1 : 2) +
         Scratch::bytes_of(DType::f32, limits.logit_rows, logit_columns(decoder)) +
         Scratch::bytes_of(DType::f32, squares_of(decoder, limits), kernels::kSquaresRows) +
         Scratch::bytes_of(decoder.dtype(), limits.rows, per_layer_columns(decoder)) +
         decoder.scratch_bytes(limits);
}

std::size_t DecoderMemory::state_bytes(const Decoder& decoder, std::int64_t slots) {
  std::size_t bytes = 0;
  for (const layers::DecoderLayer& layer : decoder.layers_) {
    if (layer.delta_net() != nullptr)
      bytes += layer.delta_net()->state_bytes(slots, decoder.dtype());
  }
  return bytes;
}

TensorView DecoderMemory::logits(const Decoder& decoder, std::int64_t rows) const {
  TensorView logits = logits_.rows(0, rows);
  logits.shape[1] = decoder.head().vocabulary().size();  // rows stay where they are
  return logits;
}

DecoderMemory::DecoderMemory(const Decoder& decoder, const DecoderLimits& limits, Backend& backend)
    : limits_(limits),
      activations_(backend.allocate(MemoryKind::device, bytes(decoder, limits), "activations")),
      rope_(decoder.config().rope, decoder.config().rotary_dim(), limits.positions, backend) {
  if (const auto& local = decoder.config().local_rope) {
    local_rope_.emplace(*local, decoder.config().local_rotary_dim(), limits.positions, backend);
  }
  const std::int64_t hidden = decoder.config().hidden_size;
  Scratch all(activations_.data(), activations_.bytes());
  hidden_ = all.allocate(decoder.dtype(), limits.rows, hidden);
  normed_ = all.allocate(decoder.dtype(), limits.rows_at_once(), hidden);
  partial_ = norms_are_fused(decoder, limits)
                 ? TensorView(nullptr, decoder.dtype(), {0, hidden})
                 : all.allocate(decoder.dtype(), limits.rows_at_once(), hidden);
  squares_ = all.allocate(DType::f32, squares_of(decoder, limits), kernels::kSquaresRows);
  logits_ = all.allocate(DType::f32, limits.logit_rows, logit_columns(decoder));
  per_layer_ = all.allocate(decoder.dtype(), limits.rows, per_layer_columns(decoder));
  const std::size_t scratch = decoder.scratch_bytes(limits);
  scratch_ = Scratch(all.allocate(DType::u8, 1, static_cast<std::int64_t>(scratch)).data, scratch);
  make_states(decoder, limits.state_slots, backend);
}

void DecoderMemory::make_states(const Decoder& decoder, std::int64_t slots, Backend& backend) {
  if (decoder.config().linear_attention.key_heads == 0) return;
  const std::size_t bytes = state_bytes(decoder, slots);
  state_memory_ = backend.allocate(MemoryKind::device, bytes, "linear attention states");
  Scratch all(state_memory_.data(), bytes);
  for (const layers::DecoderLayer& layer : decoder.layers_) {
    states_.push_back(layer.delta_net() == nullptr
                          ? layers::DeltaNetState{}
                          : layer.delta_net()->state_in(all, slots, decoder.dtype()));
  }
}

}  // namespace nvllm::model
