#include "layers/parameter.h"

namespace nvllm::layers {

std::int64_t Parameter::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

}  // namespace nvllm::layers
