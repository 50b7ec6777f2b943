// TensorFile: writes tensors to a safetensors file, in bfloat16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace nvllm::needle {

// A vector or a matrix, initially zero.
class Tensor {
 public:
  explicit Tensor(std::vector<std::int64_t> shape);

  double& at(int element) { return values_[static_cast<std::size_t>(element)]; }
  double& at(int row, int column) {
    return values_[static_cast<std::size_t>(row * shape_.back() + column)];
  }
  // The matrix repeated vertically.
  Tensor repeated(int times) const;

  const std::vector<std::int64_t>& shape() const { return shape_; }
  const std::vector<double>& values() const { return values_; }

 private:
  std::vector<std::int64_t> shape_;
  std::vector<double> values_;
};

class TensorFile {
 public:
  void add(std::string name, Tensor tensor) {
    tensors_.emplace_back(std::move(name), std::move(tensor));
  }
  void write(const std::string& path) const;

 private:
  std::vector<std::pair<std::string, Tensor>> tensors_;
};

}  // namespace nvllm::needle
