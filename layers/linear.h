// Linear layers whose weights are split over ranks: by outputs (column-parallel: every rank
// computes some columns of the result) or by inputs (row-parallel: every rank computes a summand of
// the whole result). They declare the parameters and pass them to GEMMs as weight().
//
// `module` is a layer's name in checkpoints, "model.layers.0.mlp.down_proj"; `name` is our own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layers/context.h"
#include "layers/parameter.h"
#include "layers/partition.h"
#include "layers/segment_sum.h"

namespace nvllm::layers {

// A bound parameter as GEMMs read it; bias.data may be nullptr.
kernels::GemmWeight gemm_weight(const Parameter& weight, const TensorView& bias = {});

// out = x · weightᵀ [+ bias] for this rank's outputs of one or several modules, concatenated.
class ColumnParallelLinear {
 public:
  struct Module {
    std::string name;
    std::int64_t outputs;  // of the whole module
    Range own;             // this rank's outputs
  };
  // unaligned_shards: Parameter::unaligned_shards
  ColumnParallelLinear(const std::string& name, const std::vector<Module>& modules,
                       std::int64_t inputs, bool bias, bool unaligned_shards = false);
  ColumnParallelLinear(const std::string& name, const std::string& module, std::int64_t outputs,
                       std::int64_t inputs, bool bias, Shard shard)
      : ColumnParallelLinear(name, {{module, outputs, shard_range(outputs, shard)}}, inputs, bias,
                             has_uneven_parts(outputs, shard)) {}

  void declare(std::vector<Parameter*>& all);
  std::int64_t outputs() const { return weight_.shape[0]; }  // of this rank

  // Shape [outputs(), inputs].
  kernels::GemmWeight weight() const { return gemm_weight(weight_, bias_.view); }

  // Runs the plain GEMM. out: [rows, outputs()]
  void forward(TensorView out, TensorView x, const Context& context) const;

 private:
  Parameter weight_;  // [outputs(), inputs]
  Parameter bias_;    // [outputs()]; empty shape: none
};

// gate_proj and up_proj of an MLP: this rank's gate rows, then its up rows.
class MergedColumnParallelLinear : public ColumnParallelLinear {
 public:
  MergedColumnParallelLinear(const std::string& name, const std::string& gate,
                             const std::string& up, std::int64_t outputs, std::int64_t inputs,
                             bool bias, Shard shard)
      : ColumnParallelLinear(name,
                             {{gate, outputs, shard_range(outputs, shard)},
                              {up, outputs, shard_range(outputs, shard)}},
                             inputs, bias, has_uneven_parts(outputs, shard, 2)) {}
};

// q_proj, k_proj and v_proj of an attention block, split by whole heads.
class QkvParallelLinear : public ColumnParallelLinear {
 public:
  struct Modules {
    // k empty: the layer reuses another layer's K/V and has q alone. v empty: values are the output
    // of k_proj.
    std::string q, k, v;
    // per head q's module has q rows, then as many gate rows, which are skipped
    bool gated = false;
  };
  QkvParallelLinear(const std::string& name, const Modules& modules, std::int64_t heads,
                    std::int64_t kv_heads, std::int64_t head_dim, std::int64_t inputs, bool bias,
                    Shard shard);
};

// The gate rows of such a gated q_proj, in the order of this rank's heads.
class OutputGateParallelLinear : public ColumnParallelLinear {
 public:
  OutputGateParallelLinear(const std::string& name, const std::string& q, std::int64_t heads,
                           std::int64_t kv_heads, std::int64_t head_dim, std::int64_t inputs,
                           bool bias, Shard shard);
};

// The sum over ranks of x · weightᵀ [+ bias], where each rank has some of the inputs. A rank
// without inputs still takes part in the sum. Rank 0 alone has the bias and adds it to its summand.
//
// With Shard::tp_invariant the sum runs over segments of the inputs (segment_sum.h). Each segment's
// weight is a matrix of its own, stored one after the other, and every rank adds the bias to the
// sum. The weight may be quantized if segments are multiples of kQuantizedCut.
class RowParallelLinear {
 public:
  // own: this rank's inputs; segments: the number over all inputs, with tp_invariant
  RowParallelLinear(const std::string& name, const std::string& module, std::int64_t outputs,
                    std::int64_t inputs, Range own, bool bias, Shard shard,
                    std::int64_t segments = 1);

  void declare(std::vector<Parameter*>& all);
  std::int64_t inputs() const { return inputs_; }  // of this rank
  bool tp_invariant() const { return sum_.segments() > 0; }

  // Shape [outputs, inputs()]; with tp_invariant only its format is meaningful
  kernels::GemmWeight weight() const { return gemm_weight(weight_, bias_.view); }

  // Runs the GEMM and the sum over ranks. out: [rows, outputs], the same on all ranks.
  void forward(TensorView out, TensorView x, const Context& context) const;

  // Bytes of Context::scratch that forward() takes.
  std::size_t scratch_bytes(std::int64_t rows) const;

 private:
  // Computes the sum of x · weightᵀ over some of this rank's segments of the inputs.
  void add_segments(const kernels::TreeSum& sum, TensorView x, Range segments,
                    const Context& context) const;

  std::int64_t inputs_;
  std::int64_t outputs_;
  SegmentSum sum_;          // without segments: not tp_invariant
  std::int64_t width_ = 0;  // of a segment
  Parameter weight_;        // [outputs, inputs()]; tp_invariant: [own segments * outputs, width_]
  Parameter bias_;          // [outputs]; empty shape: none, or another rank's
};

}  // namespace nvllm::layers
