#include "model/testing/gguf_writer.h"

namespace nvllm::model {

void GgufWriter::u32(const std::string& key, std::int64_t value) {
  builder_.u32(architecture_ + key, static_cast<std::uint32_t>(value));
}

void GgufWriter::f32(const std::string& key, const nlohmann::json& value) {
  builder_.f32(architecture_ + key, value.get<float>());
}

void GgufWriter::add(const std::string& name, const GgufValues& tensor) {
  const bool f32 = tensor.shape.size() == 1 || name.ends_with(".bias") ||
                   name.find("conv1d") != std::string::npos;
  const GgufType type = f32 ? GgufType::f32 : conversion_.type(name);
  builder_.tensor(name, type, {tensor.shape.rbegin(), tensor.shape.rend()},
                  encode_values(tensor, type));
}

void GgufWriter::add_norm(const std::string& name, const std::string& theirs, float less) {
  if (!has(theirs)) return;
  GgufValues norm = read(theirs);
  for (float& weight : norm.values) weight += less;
  add(name, norm);
}

}  // namespace nvllm::model
