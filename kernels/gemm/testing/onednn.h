// oneDNN, for benchmarks to compare with. It is bound when first needed, so that nothing else depends on it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device/dtype.h"

namespace nvllm::kernels {

// A product of rows of x with weights, [outputs, inputs], on all cores.
class OneDnnProduct {
 public:
  enum class Weights {
    plain,   // as checkpoints hold them
    packed,  // reordered beforehand as oneDNN likes them best
  };

  // float32 or bfloat16. nullptr, with the reason, where oneDNN is missing at build or run time or cannot.
  static std::unique_ptr<OneDnnProduct> create(DType type, std::int64_t rows, std::int64_t outputs,
                                               std::int64_t inputs, Weights weights,
                                               std::string* why_not);
  virtual ~OneDnnProduct() = default;
  virtual void run() = 0;  // waits until it is done
};

}  // namespace nvllm::kernels
