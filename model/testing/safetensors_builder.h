// Builds a folder with config.json and one safetensors file from tensors of any type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "model/testing/test_folder.h"

namespace nvllm::model {

class SafetensorsBuilder {
 public:
  // `dtype`: as named in the header. Replaces an existing tensor of that name.
  template <typename T>
  void set(const std::string& name, const std::string& dtype, std::vector<std::int64_t> shape,
           const std::vector<T>& values) {
    Tensor& tensor = tensors_[name];
    tensor.dtype = dtype;
    tensor.shape = std::move(shape);
    tensor.bytes.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
  void erase(const std::string& name) { tensors_.erase(name); }
  void set_config(std::string json) { config_ = std::move(json); }

  void write(const TestFolder& folder) const {
    std::string header, data;
    for (const auto& [name, tensor] : tensors_) {
      std::string shape;
      for (const std::int64_t size : tensor.shape) shape += str(shape.empty() ? "" : ",", size);
      header += str(header.empty() ? "{" : ",", R"(")", name, R"(":{"dtype":")", tensor.dtype,
                    R"(","shape":[)", shape, R"(],"data_offsets":[)", data.size(), ",",
                    data.size() + tensor.bytes.size(), "]}");
      data += tensor.bytes;
    }
    header += "}";
    const std::uint64_t size = header.size();
    std::string length(sizeof size, '\0');
    std::memcpy(length.data(), &size, sizeof size);
    folder.write("model.safetensors", length + header + data);
    folder.write("config.json", config_);
  }

 private:
  struct Tensor {
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::string bytes;
  };
  std::map<std::string, Tensor> tensors_;
  std::string config_ = "{}";
};

}  // namespace nvllm::model
