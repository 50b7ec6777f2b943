// SparseMoe: a mixture of experts instead of an MLP block. A router selects some experts for each
// row; each expert is a gated MLP, and their results are summed with the router's weights.
//
// Some models have a shared expert, which every row goes through: its result is multiplied by the
// sigmoid of a gate. It is split over ranks like an MLP.
//
// In some models the experts run in parallel with an MLP, and the router norms its own input rows.
//
// Router and experts may have biases. If experts are sliced, rank 0 alone has the down projection's
// bias and adds it to its summand.
//
// Every rank has the whole router and a slice of each expert, as of an MLP; or, with expert
// parallelism, some whole experts. The experts' weights form one parameter, one expert after the
// other, which grouped GEMMs read; weights of experts that no row selected are not read.
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
  std::int64_t intermediate = 0;  // of one expert
  std::int64_t experts_per_token = 0;
  bool renormalize = false;  // divide the selected experts' probabilities by their sum
  bool bias = false;         // on the router and all projections of experts
  kernels::Activation activation = kernels::Activation::silu;
  float limit = 0;                       // kernels::GatedActivation
  bool expert_parallel = false;          // ranks own whole experts
  std::int64_t shard_alignment = 64;     // shard_alignment of shard_range() for slices of an expert
  Expert shared{};                       // modules of the shared expert
  std::string shared_gate{};             // tensor: [1, hidden]
  std::int64_t shared_intermediate = 0;  // 0: no shared expert
  // Weight tensor of the norm of the router's rows, which are then divided by sqrt(hidden); empty:
  // no norm.
  std::string router_norm{};
  std::string expert_scales{};  // tensor: [experts], factors of the router weights; empty: none
  float epsilon = 1e-6f;        // of the router's norm
};

class SparseMoe {
 public:
  SparseMoe(const std::string& name, const SparseMoeConfig& config, Shard shard);

  void declare(std::vector<Parameter*>& all);

  // Reads the stream through `norm` and adds to it.
  void forward(ResidualStream& stream, const RmsNorm& norm, const Context& context) const;
  // In parallel with an MLP: this rank's summand of the experts' result for x. The router reads
  // `of_router`. All: [rows, hidden].
  void forward(TensorView out, TensorView x, TensorView of_router, const Context& context) const;

  // Bytes of Context::scratch that a pass of `rows` rows takes.
  std::size_t scratch_bytes(std::int64_t rows, DType dtype) const;

 private:
  struct Routed;  // the assignment of rows to experts
  struct Shared {
    MergedColumnParallelLinear gate_up;
    RowParallelLinear down;
    Parameter gate;  // [1, hidden]
  };
  // The shared expert's result, [rows, hidden], and its gate logits, [rows, 1], in scratch memory.
  struct SharedResult {
    TensorView out, gate;
  };
  SharedResult run_shared(TensorView x, const Context& context) const;
  // Runs a stream of one row if the backend has kernels for that; otherwise returns false.
  bool run_single_token(ResidualStream& stream, const RmsNorm& norm, const Context& context) const;
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
  SegmentSum sum_;     // with Shard::tp_invariant, over whole experts; otherwise unused
  Range own_experts_;  // this rank's experts
  Range slice_;
  Parameter router_;  // [experts, hidden]
  // [own experts * 2 * intermediate(), hidden]: per expert gate rows, then up rows
  Parameter gate_up_;
  Parameter down_;  // [own experts * hidden, intermediate()]
  // Biases of these; empty shape: none, or another rank's.
  Parameter router_bias_, gate_up_bias_, down_bias_;
  std::optional<Shared> shared_;
  std::optional<RmsNorm> router_norm_;
  Parameter expert_scales_;  // [experts]; empty shape: none
};

}  // namespace nvllm::layers
