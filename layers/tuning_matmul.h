// TuningMatmul: computes the products of a forward pass and notes them; then they can be tuned, those of all
// layers together.
//
//   TuningMatmul tuning(matmul);
//   decoder.forward(batch, cache, memory, {stream, tuning, communicator});
//   tuning.tune_all(stream);
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "kernels/gemm/linear.h"

namespace nvllm::layers {

class TuningMatmul final : public kernels::Matmul {
 public:
  explicit TuningMatmul(kernels::Matmul& matmul) : matmul_(matmul) {}

  void linear(const kernels::Linear& args, Stream& stream) override;
  void tune(std::span<const kernels::Linear> alike, Stream& stream) override {
    matmul_.tune(alike, stream);
  }
  bool fuses_after(const kernels::Linear& args) override { return matmul_.fuses_after(args); }
  bool begins_norm(const kernels::Linear& args) override { return matmul_.begins_norm(args); }

  // Tunes what has been noted, kind by kind. The tensors must still be there; of their values, what
  // products write is worth nothing afterwards.
  void tune_all(Stream& stream);

 private:
  // Rows, outputs, inputs, what comes before and after, whether there is a residual.
  using Kind = std::tuple<std::int64_t, std::int64_t, std::int64_t, kernels::Linear::Before,
                          kernels::Linear::After, bool>;

  kernels::Matmul& matmul_;
  std::map<Kind, std::vector<kernels::Linear>> noted_;
};

}  // namespace nvllm::layers
