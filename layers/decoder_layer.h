// DecoderLayer: an attention block and an MLP block. Each reads the residual stream through a norm
// and adds its result to it, in some models through a second norm. forward() is the whole layer,
// top to bottom; it is the same for one rank and several, for captured graphs, prefill and decode.
//
// Attention is causal, with RoPE and grouped KV heads, split over ranks by heads; in some models
// some layers have linear attention instead (gated_delta_net.h). The MLP is
// down(activation(gate(x)) * up(x)), split by its inner dimension, or a mixture of experts, or both
// in parallel. In some models a per-layer input follows the MLP block (per_layer_input.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/kv_cache.h"
#include "layers/context.h"
#include "layers/gated_delta_net.h"
#include "layers/layer_plan.h"
#include "layers/linear.h"
#include "layers/per_layer_input.h"
#include "layers/residual_stream.h"
#include "layers/sparse_moe.h"

namespace nvllm::layers {

struct AttentionConfig {
  // "model.layers.0.self_attn.q_proj" ...; k empty: the layer has no K/V of its own.
  QkvParallelLinear::Modules qkv;
  std::string output;          // "model.layers.0.self_attn.o_proj"
  std::string q_norm, k_norm;  // tensors: "model.layers.0.self_attn.q_norm.weight"
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  bool qkv_bias = false;
  bool output_bias = false;
  bool qk_norm = false;
  bool v_norm = false;           // values go through an RMSNorm without weights
  bool output_gate = false;      // q's module also outputs gates (QkvParallelLinear::Modules)
  float epsilon = 1e-6f;         // of the q, k and v norms
  float norm_weight_offset = 0;  // of the q, k and v norms
  float scale = 0;               // factor of q · k; 0: 1 / sqrt(head_dim)
  std::int64_t window = 0;       // sliding window in tokens; 0: full attention
  std::string sinks = "";        // tensor: one attention-sink logit per head; empty: none
};

struct MlpConfig {
  std::string gate, up, down;  // modules: "model.layers.0.mlp.gate_proj"
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  bool bias = false;
  kernels::Activation activation = kernels::Activation::silu;
};

// Norm tensors of experts that run in parallel with an MLP: the norm through which the experts read
// the stream, and one for each result before the two are added.
struct MoeBesideMlpConfig {
  std::string norm, post_mlp_norm, moe_result_norm;
};

struct DecoderLayerConfig {
  AttentionConfig attention;
  MlpConfig mlp;
  std::optional<GatedDeltaNetConfig> delta_net;  // instead of attention
  std::optional<SparseMoeConfig> moe;            // instead of the MLP, or,
  std::optional<MoeBesideMlpConfig> beside_mlp;  // with beside_mlp, in parallel with it
  std::optional<PerLayerInputConfig> per_layer_input;
  std::string attention_norm, mlp_norm;  // tensors: "model.layers.0.input_layernorm.weight"
  // Norms of what the blocks add to the stream; empty: none. With these, or with a norm weight
  // offset, the stream has unfused_norms.
  std::string post_attention_norm, post_mlp_norm;
  std::string factor = "";       // tensor: [1], a factor of the layer's output
  float epsilon = 1e-6f;         // of these norms
  float norm_weight_offset = 0;  // of these norms
};

class DecoderLayer {
 public:
  DecoderLayer(const std::string& name, const DecoderLayerConfig& config, Shard shard);

  void declare(std::vector<Parameter*>& all);
  const HeadShard& heads() const { return part_; }
  std::int64_t head_dim() const { return head_dim_; }

  // The arguments of one pass through the layer.
  struct Pass {
    const Batch& batch;
    kvcache::KvCache& kv;  // holds this rank's KV heads
    // This layer's index in `kv`, or that of the layer whose K/V it reuses; for a layer without
    // attention, the index of the next layer that has attention.
    std::int64_t layer;
    TensorView cos_sin;      // from a RopeTable
    DeltaNetState state{};   // of linear attention
    TensorView per_layer{};  // of layers with a per-layer input (per_layer_input.h)
    // The layer that reads the stream next; nullptr: none, or unknown.
    const DecoderLayer* next = nullptr;
    std::int64_t next_layer = 0;  // `layer` of the next layer's pass
    // After attention, keep only the rows whose logits are needed (select_rows()): the MLP block
    // and everything after it are row-wise.
    bool select_logit_rows = false;
    // Overlapped rows: the stream of the other rows, whose sum over the ranks is computed in the
    // middle of this block.
    ResidualStream* other = nullptr;
  };
  void forward(ResidualStream& stream, const Pass& pass, const Context& context) const;

  // The two blocks separately, for overlapped rows (ResidualStream::overlapped): other rows' blocks
  // run between them. Requires pass.next and can_overlap().
  void forward_attention(ResidualStream& stream, const Pass& pass, const Context& context) const;
  void forward_mlp(ResidualStream& stream, const Pass& pass, const Context& context) const;
  bool can_overlap() const;

  // nullptr: the layer has softmax attention.
  const GatedDeltaNet* delta_net() const { return delta_net_ ? &*delta_net_ : nullptr; }

  // Bytes of Context::scratch that a pass, or an MLP block, of `rows` rows takes.
  std::size_t scratch_bytes(std::int64_t rows, DType dtype) const;
  std::size_t mlp_scratch_bytes(std::int64_t rows, DType dtype) const;

 private:
  struct HeadNorms {
    RmsNorm q;
    std::optional<RmsNorm> k;  // absent: the layer has no keys of its own
  };
  struct AttentionBlock {
    QkvParallelLinear qkv;
    std::optional<OutputGateParallelLinear> gate;
    std::optional<HeadNorms> norms;
    bool norms_v;
    bool shares_kv;   // the layer reuses the K/V of another layer
    Parameter sinks;  // [heads of this rank]; empty shape: none
    RowParallelLinear output;
  };
  struct Mlp {
    MergedColumnParallelLinear gate_up;
    RowParallelLinear down;
    kernels::Activation activation;
  };

  struct BesideMlp {
    RmsNorm norm, post_mlp_norm, moe_result_norm;
  };

  LayerGemms gemms() const;
  LayerPlan plan(const ResidualStream& stream, const Pass& pass, const Context& context) const;
  AttentionBlock attention_block_of(const std::string& name, const AttentionConfig& config,
                                    Shard shard) const;
  void attention_block(ResidualStream& stream, const Pass& pass, const LayerPlan& plan,
                       const Context& context) const;
  void mlp_block(ResidualStream& stream, const Pass& pass, const LayerPlan& plan,
                 const Context& context) const;
  // The down GEMM's input, and memory for its prologue if it has one.
  struct GateUp {
    TensorView x, prepared;
  };
  GateUp gate_up(kernels::GemmOperands in, std::int64_t rows, const LayerPlan& plan,
                 const Context& context) const;
  TensorView activated(const GateUp& rows, const Context& context) const;
  void mlp_and_moe_block(ResidualStream& stream, const LayerPlan& plan,
                         const Context& context) const;
  void norm_rope_and_store(TensorView qkv, const Pass& pass, const Context& context) const;
  kernels::Attention attention_of(TensorView out, TensorView qkv, const Pass& pass) const;

  HeadShard part_;
  std::int64_t head_dim_, window_;
  float scale_;

  RmsNorm attention_norm_;
  std::optional<AttentionBlock> attention_;  // either this or delta_net_
  std::optional<GatedDeltaNet> delta_net_;
  std::optional<RmsNorm> post_attention_norm_, post_mlp_norm_;
  RmsNorm mlp_norm_;
  Parameter layer_scale_;   // [1]; empty shape: 1
  std::optional<Mlp> mlp_;  // this, moe_, or both
  std::optional<SparseMoe> moe_;
  std::optional<BesideMlp> beside_mlp_;
  std::optional<PerLayerInput> per_layer_input_;
};

}  // namespace nvllm::layers
