// GatedMlp: down(activation(gate(x)) * up(x)), split over ranks by its inner dimension.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/pointwise/activation.h"
#include "layers/linear.h"
#include "layers/residual.h"

namespace nvllm::layers {

struct MlpConfig {
  std::string gate, up, down;  // modules: "model.layers.0.mlp.gate_proj"
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  bool bias = false;
  kernels::Activation activation = kernels::Activation::silu;
};

class GatedMlp {
 public:
  GatedMlp(const std::string& name, const MlpConfig& config, Shard shard);

  void declare(std::vector<Parameter*>& all);

  // Adds the MLP of the stream's norm to the stream. ahead: what is attended to next.
  void forward(ResidualStream& stream, const RmsNorm& norm, const Context& context,
               const kernels::KvPrefetch& ahead = {}) const;
  // Of Context::scratch.
  std::size_t scratch_bytes(std::int64_t rows, DType dtype) const;

 private:
  MergedColumnParallelLinear gate_up_;
  RowParallelLinear down_;
  kernels::Activation activation_;
};

}  // namespace nvllm::layers
