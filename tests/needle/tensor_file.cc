#include "tests/needle/tensor_file.h"

#include <fstream>

#include "base/error.h"
#include "base/text.h"
#include "device/dtype.h"

namespace nvllm::needle {

Tensor::Tensor(std::vector<std::int64_t> shape) : shape_(std::move(shape)) {
  std::size_t elements = 1;
  for (const std::int64_t extent : shape_) elements *= static_cast<std::size_t>(extent);
  values_.resize(elements);
}

Tensor Tensor::repeated(int times) const {
  std::vector<std::int64_t> shape = shape_;
  shape.front() *= times;
  Tensor all(std::move(shape));
  all.values_.clear();
  for (int i = 0; i < times; ++i)
    all.values_.insert(all.values_.end(), values_.begin(), values_.end());
  return all;
}

// The header's length in 8 bytes, the header as JSON, then the values of the tensors in sequence.
void TensorFile::write(const std::string& path) const {
  std::string header = "{", data;
  for (const auto& [name, tensor] : tensors_) {
    const std::size_t begin = data.size();
    for (const double value : tensor.values()) {
      const std::uint16_t bits = from_float<Bf16>(static_cast<float>(value)).bits;
      data.append({static_cast<char>(bits & 0xff), static_cast<char>(bits >> 8)});
    }
    std::string shape;
    for (const std::int64_t extent : tensor.shape())
      shape += str(shape.empty() ? "" : ", ", extent);
    header += str(header.size() == 1 ? "" : ", ", '"', name, R"(": {"dtype": "BF16", "shape": [)",
                  shape, R"(], "data_offsets": [)", begin, ", ", data.size(), "]}");
  }
  header += '}';
  std::string length;
  for (std::size_t i = 0; i < 8; ++i) length += static_cast<char>(header.size() >> (8 * i) & 0xff);
  std::ofstream file(path, std::ios::binary);
  file << length << header << data;
  file.close();
  if (!file) fail(path, ": cannot be written");
}

}  // namespace nvllm::needle
