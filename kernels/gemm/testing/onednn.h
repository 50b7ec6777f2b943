// oneDNN, for benchmarks to compare with. It is bound when first needed, so that nothing else
// depends on it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device/dtype.h"

namespace nvllm::kernels {

// A GEMM of x, [m, inputs], with weights, [outputs, inputs], on all cores.
class OneDnnGemm {
 public:
  enum class Weights {
    plain,   // as checkpoints hold them
    packed,  // reordered beforehand as oneDNN likes them best
  };

  // float32 or bfloat16. nullptr, with the reason, where oneDNN is missing at build or run time, or
  // cannot.
  static std::unique_ptr<OneDnnGemm> create(DType type, std::int64_t m, std::int64_t outputs,
                                            std::int64_t inputs, Weights weights,
                                            std::string* why_not);
  virtual ~OneDnnGemm() = default;
  virtual void run() = 0;  // waits until it is done
};

}  // namespace nvllm::kernels
