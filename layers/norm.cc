#include "layers/norm.h"

namespace nvllm::layers {

RmsNorm::RmsNorm(const std::string& name, const std::string& module, std::int64_t columns,
                 float epsilon)
    : weight{name + ".weight", {columns}, {}, {}}, epsilon(epsilon) {
  weight.slices = {{module + ".weight", {columns}, {0, columns}, {0, 1}, 0}};
}

}  // namespace nvllm::layers
