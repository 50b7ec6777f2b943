// Linear layers whose weights are split over ranks: by outputs (column-parallel: every rank
// computes some columns of the result) or by inputs (row-parallel: every rank computes a summand of
// all of it). They declare the parameters and give them to GEMMs, as weight().
//
// `module` is a layer's name in checkpoints, "model.layers.0.mlp.down_proj"; `name` that of ours.
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

// out = x · weightᵀ [+ bias] for this rank's outputs: those of one or several modules, one after
// the other.
class ColumnParallelLinear {
 public:
  struct Module {
    std::string name;
    std::int64_t outputs;  // of the whole module
    Range own;             // of them
  };
  // uneven_parts: Parameter::uneven_parts
  ColumnParallelLinear(const std::string& name, const std::vector<Module>& modules,
                       std::int64_t inputs, bool bias, bool uneven_parts = false);
  ColumnParallelLinear(const std::string& name, const std::string& module, std::int64_t outputs,
                       std::int64_t inputs, bool bias, Shard shard)
      : ColumnParallelLinear(name, {{module, outputs, part_of(outputs, shard)}}, inputs, bias,
                             has_uneven_parts(outputs, shard)) {}

  void declare(std::vector<Parameter*>& all);
  std::int64_t outputs() const { return weight_.shape[0]; }  // of this rank

  // [outputs(), inputs]
  kernels::GemmWeight weight() const { return gemm_weight(weight_, bias_.view); }

  // The GEMM alone. out: [rows, outputs()]
  void forward(TensorView out, TensorView x, const Context& context) const;

 private:
  Parameter weight_;  // [outputs(), inputs]
  Parameter bias_;    // [outputs()]; no shape: none
};

// gate_proj and up_proj of an MLP: this rank's gates, then what they let through.
class MergedColumnParallelLinear : public ColumnParallelLinear {
 public:
  MergedColumnParallelLinear(const std::string& name, const std::string& gate,
                             const std::string& up, std::int64_t outputs, std::int64_t inputs,
                             bool bias, Shard shard)
      : ColumnParallelLinear(
            name,
            {{gate, outputs, part_of(outputs, shard)}, {up, outputs, part_of(outputs, shard)}},
            inputs, bias, has_uneven_parts(outputs, shard, 2)) {}
};

// q_proj, k_proj and v_proj of an attention: whole heads.
class QkvParallelLinear : public ColumnParallelLinear {
 public:
  struct Modules {
    // k: none where a layer reads the keys and values of another one, which has q alone. v: none
    // where values are what k_proj makes.
    std::string q, k, v;
    bool gated = false;  // q's has of each head first q, then as many gates, which are left out
  };
  QkvParallelLinear(const std::string& name, const Modules& modules, std::int64_t heads,
                    std::int64_t kv_heads, std::int64_t head_dim, std::int64_t inputs, bool bias,
                    Shard shard);
};

// The gates that such a q_proj has beside q, in the order of this rank's heads.
class OutputGateParallelLinear : public ColumnParallelLinear {
 public:
  OutputGateParallelLinear(const std::string& name, const std::string& q, std::int64_t heads,
                           std::int64_t kv_heads, std::int64_t head_dim, std::int64_t inputs,
                           bool bias, Shard shard);
};

// The sum over ranks of x · weightᵀ [+ bias], where each rank has some of the inputs. A rank takes
// part in the sum also where it has none. The bias is rank 0's, which adds it to its summand.
//
// With Shard::tp_invariant the sum is one over segments of the inputs (segment_sum.h). The weight
// of each is a matrix of its own, one behind the other, and every rank adds the bias, to the sum.
// It may be quantized if segments are of whole multiples of kQuantizedCut.
class RowParallelLinear {
 public:
  // own: this rank's inputs; segments: with tp_invariant, of all inputs
  RowParallelLinear(const std::string& name, const std::string& module, std::int64_t outputs,
                    std::int64_t inputs, Range own, bool bias, Shard shard,
                    std::int64_t segments = 1);

  void declare(std::vector<Parameter*>& all);
  std::int64_t inputs() const { return inputs_; }  // of this rank
  bool tp_invariant() const { return sum_.segments() > 0; }

  // [outputs, inputs()]; with tp_invariant of no use, but as a weight of its format
  kernels::GemmWeight weight() const { return gemm_weight(weight_, bias_.view); }

  // The GEMM and the sum over ranks. out: [rows, outputs], the same on all ranks.
  void forward(TensorView out, TensorView x, const Context& context) const;

  // Of Context::scratch, by forward().
  std::size_t scratch_bytes(std::int64_t rows) const;

 private:
  // The sum of x · weightᵀ over some own segments of the inputs.
  void add_segments(const kernels::TreeSum& sum, TensorView x, Range segments,
                    const Context& context) const;

  std::int64_t inputs_;
  std::int64_t outputs_;
  SegmentSum sum_;          // of no segments: not tp_invariant
  std::int64_t width_ = 0;  // of a segment
  Parameter weight_;        // [outputs, inputs()]; tp_invariant: [own segments * outputs, width_]
  Parameter bias_;          // [outputs]; no shape: none, or another rank's
};

}  // namespace nvllm::layers
