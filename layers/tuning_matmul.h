// TuningMatmul: tunes a kind of product when it first meets one, then computes it. A forward pass with it
// tunes all products of passes like that one.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/linear.h"

namespace nvllm::layers {

class TuningMatmul final : public kernels::Matmul {
 public:
  explicit TuningMatmul(kernels::Matmul& matmul) : matmul_(matmul) {}

  void linear(const kernels::Linear& args, Stream& stream) override;
  void tune(const kernels::Linear& args, Stream& stream) override;

 private:
  struct Kind {
    std::int64_t rows, outputs, inputs;
    kernels::Linear::Before before;
    bool residual;
    bool operator==(const Kind&) const = default;
  };

  kernels::Matmul& matmul_;
  std::vector<Kind> seen_;
};

}  // namespace nvllm::layers
