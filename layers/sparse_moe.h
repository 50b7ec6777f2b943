// SparseMoe: a mixture of experts in place of an MLP block. A router chooses some experts for each
// row; each of them is a gated MLP, and what they make of the row is added with the router's
// weights.
//
// In some models all rows go through one expert more, the shared one: what it makes is multiplied
// by the sigmoid of a gate. It is split over ranks as an MLP is.
//
// In some models experts are beside an MLP, and the router reads rows of its own, which it norms.
//
// Router and experts may have biases. That of the down projection of an expert in slices is rank
// 0's, which adds it to its summand.
//
// Every rank has the whole router and a slice of each expert, as it has of an MLP; or, with expert
// parallelism, some whole experts. Their weights are one parameter, one expert after the other,
// which grouped GEMMs read; those of experts that no row has chosen are not read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "layers/context.h"
#include "layers/linear.h"
#include "layers/parameter.h"
#include "layers/partition.h"
#include "layers/residual_stream.h"

namespace nvllm::layers {

struct SparseMoeConfig {
  struct Expert {
    std::string gate, up, down;  // modules: "model.layers.0.mlp.experts.0.gate_proj"
  };
  std::string router;  // module: "model.layers.0.mlp.gate"
  std::vector<Expert> experts;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;  // of an expert
  std::int64_t experts_per_token = 0;
  bool renormalize = false;  // the chosen experts' probabilities are divided by their sum
  bool bias = false;         // of the router and of all that experts have
  kernels::Activation activation = kernels::Activation::silu;
  float limit = 0;                // kernels::GatedActivation
  bool expert_parallel = false;   // ranks have whole experts
  std::int64_t max_granule = 64;  // part_of()'s: ranks have slices of an expert in whole ones
  Expert shared{};                // modules of the shared expert
  std::string shared_gate{};      // tensor: [1, hidden]
  std::int64_t shared_intermediate = 0;  // 0: there is none
  // Of a router that norms its rows: the norm's weight, a tensor; empty: it does not. What it norms
  // is divided by sqrt(hidden).
  std::string router_norm{};
  std::string expert_scales{};  // tensor: [experts], by which weights are multiplied; empty: none
  float epsilon = 1e-6f;        // of the router's norm
};

class SparseMoe {
 public:
  SparseMoe(const std::string& name, const SparseMoeConfig& config, Shard shard);

  void declare(std::vector<Parameter*>& all);

  // Reads the stream through `norm` and adds to it.
  void forward(ResidualStream& stream, const RmsNorm& norm, const Context& context) const;
  // Beside an MLP: this rank's summand of what the experts make of x. The router reads other rows.
  // All: [rows, hidden].
  void forward(TensorView out, TensorView x, TensorView of_router, const Context& context) const;

  // Of Context::scratch.
  std::size_t scratch_bytes(std::int64_t rows, DType dtype) const;

 private:
  struct Routed;  // which rows go to which experts
  struct Shared {
    MergedColumnParallelLinear gate_up;
    RowParallelLinear down;
    Parameter gate;  // [1, hidden]
  };
  // What it makes, [rows, hidden], and the logits of its gate, [rows, 1], in scratch memory.
  struct SharedResult {
    TensorView out, gate;
  };
  SharedResult run_shared(TensorView x, const Context& context) const;
  // A stream of one row, if the backend has kernels for that; else false.
  bool run_one_row(ResidualStream& stream, const RmsNorm& norm, const Context& context) const;
  void set_shared(const std::string& name, const SparseMoeConfig& config, Shard shard);
  Routed route(TensorView x, const Context& context) const;
  TensorView normed_for_router(TensorView x, const Context& context) const;
  void run_experts(TensorView out, TensorView residual, TensorView x, const Routed& routed,
                   const SharedResult& shared, const Context& context) const;
  void sum_experts(TensorView out, TensorView of_experts, const Routed& routed,
                   const SharedResult& shared, const Context& context) const;
  void set_weights(const std::string& name, const SparseMoeConfig& config);
  void set_biases(const std::string& name, const SparseMoeConfig& config, Shard shard);
  std::int64_t experts() const { return router_.shape[0]; }
  std::int64_t intermediate() const { return slice_.size(); }

  std::int64_t experts_per_token_;
  bool renormalize_, expert_parallel_;
  kernels::Activation activation_;
  float limit_;
  SegmentSum sum_;     // with Shard::tp_invariant, over whole experts; else of no segments
  Range own_experts_;  // of this rank, and which part of each
  Range slice_;
  Parameter router_;   // [experts, hidden]
  Parameter gate_up_;  // [own experts * 2 * intermediate(), hidden]: of an expert gate, then up
  Parameter down_;     // [own experts * hidden, intermediate()]
  // Of their outputs; no shape: none, or another rank's.
  Parameter router_bias_, gate_up_bias_, down_bias_;
  std::optional<Shared> shared_;
  std::optional<RmsNorm> router_norm_;
  Parameter expert_scales_;  // [experts]; no shape: none
};

}  // namespace nvllm::layers
