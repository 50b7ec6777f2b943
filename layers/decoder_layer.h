// DecoderLayer: an attention block and an MLP block, each of which reads the residual stream
// through a norm and adds to it, in some models through another norm. Its forward() is the whole of
// a layer, to be read from top to bottom; it is the same for one rank and several, for captured
// graphs, prefill and decode.
//
// Attention is causal, with rotated positions and grouped KV heads, split over ranks by heads; some
// layers of some models have linear attention in its place (gated_delta_net.h). The MLP is
// down(activation(gate(x)) * up(x)), split by its inner dimension, or a mixture of experts, or both
// side by side. Some models have an input of each layer behind it (per_layer_input.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/kv_cache.h"
#include "layers/context.h"
#include "layers/gated_delta_net.h"
#include "layers/linear.h"
#include "layers/per_layer_input.h"
#include "layers/residual_stream.h"
#include "layers/sparse_moe.h"

namespace nvllm::layers {

struct AttentionConfig {
  // "model.layers.0.self_attn.q_proj" ...; without k: the layer has no keys and values of its own.
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
  bool v_norm = false;           // values are normed, without weights
  bool output_gate = false;      // q's module has gates (QkvParallelLinear::Modules)
  float epsilon = 1e-6f;         // of the norms of q, k and v
  float norm_weight_offset = 0;  // likewise
  float scale = 0;               // of q · k; 0: 1 / sqrt(head_dim)
  std::int64_t window = 0;       // tokens that a row attends to at most; 0: any number
  std::string sinks = "";        // tensor: of each head a logit without value; empty: none
};

struct MlpConfig {
  std::string gate, up, down;  // modules: "model.layers.0.mlp.gate_proj"
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  bool bias = false;
  kernels::Activation activation = kernels::Activation::silu;
};

// Norms of experts that are beside an MLP, tensors: of the stream as the experts read it, and of
// what either makes before these are added.
struct MoeBesideMlpConfig {
  std::string norm, mlp_result_norm, moe_result_norm;
};

struct DecoderLayerConfig {
  AttentionConfig attention;
  MlpConfig mlp;
  std::optional<GatedDeltaNetConfig> delta_net;  // in place of attention
  std::optional<SparseMoeConfig> moe;            // in place of the MLP, or
  std::optional<MoeBesideMlpConfig> beside_mlp;  // beside it
  std::optional<PerLayerInputConfig> per_layer_input;
  std::string attention_norm, mlp_norm;  // tensors: "model.layers.0.input_layernorm.weight"
  // Of norms of what the blocks add to the stream; empty: none. With them, or with a weight offset,
  // the stream has norms_apart.
  std::string attention_result_norm, mlp_result_norm;
  std::string factor = "";       // tensor: [1], by which the layer's result is multiplied
  float epsilon = 1e-6f;         // of these norms
  float norm_weight_offset = 0;  // likewise
};

class DecoderLayer {
 public:
  DecoderLayer(const std::string& name, const DecoderLayerConfig& config, Shard shard);

  void declare(std::vector<Parameter*>& all);
  const HeadPart& heads() const { return part_; }
  std::int64_t head_dim() const { return head_dim_; }

  // One pass through the layer.
  struct Pass {
    const Batch& batch;
    kvcache::KvCache& kv;  // of this rank's KV heads
    // Of `kv` this is layer `layer`, or one that reads its keys and values; or, without attention,
    // the next that has some is.
    std::int64_t layer;
    TensorView cos_sin;      // of a RopeTable
    DeltaNetState state{};   // of linear attention
    TensorView per_layer{};  // of layers that have an input of their own (per_layer_input.h)
    // The layer that reads the stream next; nullptr: there is none, or it is not known.
    const DecoderLayer* next = nullptr;
    std::int64_t next_layer = 0;  // `layer` in its pass
    // The MLP block, which takes rows one by one, and all that follows go on with the rows alone
    // whose logits are wanted (select_rows()).
    bool select_logit_rows = false;
    // Overlapped rows: what was sent of these others is summed up in the middle of the block.
    ResidualStream* other = nullptr;
  };
  void forward(ResidualStream& stream, const Pass& pass, const Context& context) const;

  // The two blocks one by one, of overlapped rows (ResidualStream::overlapped), between which other
  // rows have theirs. pass.next is known. Only where can_overlap().
  void forward_attention(ResidualStream& stream, const Pass& pass, const Context& context) const;
  void forward_mlp(ResidualStream& stream, const Pass& pass, const Context& context) const;
  bool can_overlap() const;

  // nullptr: it has attention.
  const GatedDeltaNet* delta_net() const { return delta_net_ ? &*delta_net_ : nullptr; }

  // Of Context::scratch: of a pass, and of an MLP block with so many rows.
  std::size_t scratch_bytes(std::int64_t rows, DType dtype) const;
  std::size_t mlp_scratch_bytes(std::int64_t rows, DType dtype) const;

 private:
  struct HeadNorms {
    RmsNorm q;
    std::optional<RmsNorm> k;  // of a layer that has keys of its own
  };
  struct AttentionBlock {
    QkvParallelLinear qkv;
    std::optional<OutputGateParallelLinear> gate;
    std::optional<HeadNorms> norms;
    bool norms_v;
    bool q_alone;     // the layer reads what another one has stored
    Parameter sinks;  // [heads of this rank]; no shape: none
    RowParallelLinear output;
  };
  struct Mlp {
    MergedColumnParallelLinear gate_up;
    RowParallelLinear down;
    kernels::Activation activation;
  };

  struct BesideMlp {
    RmsNorm norm, mlp_result_norm, moe_result_norm;
  };

  kernels::LayerGemms gemms() const;
  kernels::LayerPlan plan(const ResidualStream& stream, const Pass& pass,
                          const Context& context) const;
  AttentionBlock attention_block_of(const std::string& name, const AttentionConfig& config,
                                    Shard shard) const;
  void attention_block(ResidualStream& stream, const Pass& pass, const kernels::LayerPlan& plan,
                       const Context& context) const;
  void mlp_block(ResidualStream& stream, const Pass& pass, const kernels::LayerPlan& plan,
                 const Context& context) const;
  // What the down GEMM reads, and memory for its prologue, if it has one.
  struct GateUp {
    TensorView x, prepared;
  };
  GateUp gate_up(kernels::GemmOperands in, std::int64_t rows, const kernels::LayerPlan& plan,
                 const Context& context) const;
  TensorView activated(const GateUp& rows, const Context& context) const;
  void mlp_and_moe_block(ResidualStream& stream, const kernels::LayerPlan& plan,
                         const Context& context) const;
  void norm_rope_and_store(TensorView qkv, const Pass& pass, const Context& context) const;
  kernels::Attention attention_of(TensorView out, TensorView qkv, const Pass& pass) const;

  HeadPart part_;
  std::int64_t head_dim_, window_;
  float scale_;

  RmsNorm attention_norm_;
  std::optional<AttentionBlock> attention_;  // one of them
  std::optional<GatedDeltaNet> delta_net_;
  std::optional<RmsNorm> attention_result_norm_, mlp_result_norm_;
  RmsNorm mlp_norm_;
  Parameter factor_;        // [1]; no shape: 1
  std::optional<Mlp> mlp_;  // one of them, or both
  std::optional<SparseMoe> moe_;
  std::optional<BesideMlp> beside_mlp_;
  std::optional<PerLayerInput> per_layer_input_;
};

}  // namespace nvllm::layers
