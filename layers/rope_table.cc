#include "layers/rope_table.h"

#include <vector>

namespace nvllm::layers {

RopeTable::RopeTable(const RopeConfig& config, std::int64_t head_dim, std::int64_t positions,
                     Backend& backend) {
  const std::vector<float> values = rope_table(config, head_dim, positions);
  memory_ = backend.allocate(MemoryKind::device, values.size() * sizeof(float), "rope table");
  cos_sin_ = TensorView(memory_.data(), DType::f32, {positions, head_dim});
  const auto stream = backend.create_stream();
  backend.copy(memory_.data(), values.data(), memory_.bytes(), *stream);
  stream->synchronize();
}

}  // namespace nvllm::layers
