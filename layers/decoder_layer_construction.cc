// What a DecoderLayer consists of, by its configuration, and the parameters that it declares.
#include <cmath>

#include "base/check.h"
#include "layers/decoder_layer.h"

namespace nvllm::layers {

DecoderLayer::DecoderLayer(const std::string& name, const DecoderLayerConfig& config, Shard shard)
    : part_(heads_of(config.attention.heads, config.attention.kv_heads, shard)),
      head_dim_(config.attention.head_dim),
      window_(config.attention.window),
      scale_(config.attention.scale != 0 ? config.attention.scale
                                         : 1.0f / std::sqrt(static_cast<float>(head_dim_))),
      attention_norm_(name + ".attention_norm", config.attention_norm, config.attention.hidden,
                      config.epsilon, config.norm_weight_offset),
      mlp_norm_(name + ".mlp_norm", config.mlp_norm, config.attention.hidden, config.epsilon,
                config.norm_weight_offset) {
  if (config.delta_net) {
    delta_net_.emplace(name + ".linear_attention", *config.delta_net, shard);
  } else {
    attention_.emplace(attention_block_of(name + ".attention", config.attention, shard));
  }
  const MlpConfig& mlp = config.mlp;
  if (config.moe) moe_.emplace(name + ".moe", *config.moe, shard);
  if (!config.moe || config.beside_mlp) {
    mlp_.emplace(
        Mlp{.gate_up = MergedColumnParallelLinear(name + ".mlp.gate_up", mlp.gate, mlp.up,
                                                  mlp.intermediate, mlp.hidden, mlp.bias, shard),
            .down = RowParallelLinear(name + ".mlp.down", mlp.down, mlp.hidden, mlp.intermediate,
                                      shard_range(mlp.intermediate, shard), mlp.bias, shard,
                                      segments_of_parts(mlp.intermediate)),
            .activation = mlp.activation});
  }
  const auto norm = [&](const char* part, const std::string& tensor) {
    return RmsNorm(name + part, tensor, config.attention.hidden, config.epsilon,
                   config.norm_weight_offset);
  };
  const auto result_norm = [&](const char* part, const std::string& tensor) {
    return tensor.empty() ? std::nullopt : std::optional(norm(part, tensor));
  };
  post_attention_norm_ = result_norm(".post_attention_norm", config.post_attention_norm);
  post_mlp_norm_ = result_norm(".post_mlp_norm", config.post_mlp_norm);
  if (config.beside_mlp) {
    beside_mlp_.emplace(BesideMlp{norm(".moe_norm", config.beside_mlp->norm),
                                  norm(".mlp_output_norm", config.beside_mlp->post_mlp_norm),
                                  norm(".moe_output_norm", config.beside_mlp->moe_result_norm)});
  }
  if (config.per_layer_input) {
    per_layer_input_.emplace(name + ".per_layer", *config.per_layer_input, shard);
  }
  if (!config.factor.empty()) {
    layer_scale_.name = name + ".factor";
    layer_scale_.shape = {1};
    layer_scale_.slices = {{config.factor, {1}, {0, 1}, {0, 1}, 0}};
  }
  NVLLM_CHECK(!moe_ || beside_mlp_ || !post_mlp_norm_, "experts whose result is normed");
  NVLLM_CHECK(!delta_net_ || !post_attention_norm_, "linear attention whose result is normed");
}

DecoderLayer::AttentionBlock DecoderLayer::attention_block_of(const std::string& name,
                                                              const AttentionConfig& config,
                                                              Shard shard) const {
  QkvParallelLinear::Modules modules = config.qkv;
  modules.gated = config.output_gate;
  AttentionBlock block{
      .qkv = QkvParallelLinear(name + ".qkv", modules, config.heads, config.kv_heads, head_dim_,
                               config.hidden, config.qkv_bias, shard),
      .gate = {},
      .norms = {},
      .norms_v = config.v_norm,
      .shares_kv = modules.k.empty(),
      .sinks = {},
      .output =
          RowParallelLinear(name + ".out", config.output, config.hidden, config.heads * head_dim_,
                            scaled(part_.q, head_dim_), config.output_bias, shard, part_.segments)};
  if (config.output_gate) {
    block.gate.emplace(name + ".gate", config.qkv.q, config.heads, config.kv_heads, head_dim_,
                       config.hidden, config.qkv_bias, shard);
  }
  if (!config.sinks.empty()) {
    block.sinks.name = name + ".sinks";
    block.sinks.shape = {part_.q.size()};
    block.sinks.slices = {{config.sinks, {config.heads}, part_.q, {0, 1}, 0}};
  }
  if (!config.qk_norm) return block;
  const auto head_norm = [&](const char* part, const std::string& tensor) {
    return RmsNorm(name + part, tensor, head_dim_, config.epsilon, config.norm_weight_offset);
  };
  block.norms.emplace(HeadNorms{head_norm(".q_norm", config.q_norm), std::nullopt});
  if (!block.shares_kv) block.norms->k = head_norm(".k_norm", config.k_norm);
  return block;
}

void DecoderLayer::declare(std::vector<Parameter*>& all) {
  attention_norm_.declare(all);
  if (delta_net_) {
    delta_net_->declare(all);
  } else {
    attention_->qkv.declare(all);
    if (attention_->gate) attention_->gate->declare(all);
    if (attention_->norms) {
      attention_->norms->q.declare(all);
      if (attention_->norms->k) attention_->norms->k->declare(all);
    }
    if (!attention_->sinks.shape.empty()) all.push_back(&attention_->sinks);
    attention_->output.declare(all);
  }
  if (post_attention_norm_) post_attention_norm_->declare(all);
  mlp_norm_.declare(all);
  if (moe_) moe_->declare(all);
  if (mlp_) {
    mlp_->gate_up.declare(all);
    mlp_->down.declare(all);
  }
  if (beside_mlp_) {
    beside_mlp_->norm.declare(all);
    beside_mlp_->post_mlp_norm.declare(all);
    beside_mlp_->moe_result_norm.declare(all);
  }
  if (post_mlp_norm_) post_mlp_norm_->declare(all);
  if (per_layer_input_) per_layer_input_->declare(all);
  if (!layer_scale_.shape.empty()) all.push_back(&layer_scale_);
}

}  // namespace nvllm::layers
