#include "layers/norm.h"

namespace nvllm::layers {

RmsNorm::RmsNorm(const std::string& name, const std::string& tensor, std::int64_t columns,
                 float epsilon)
    : weight{name + ".weight", {columns}, {}, {}}, epsilon(epsilon) {
  weight.slices = {{tensor, {columns}, {0, columns}, {0, 1}, 0}};
}

}  // namespace nvllm::layers
