// Writes GGUF files for tests, valid and broken ones, and opens those of a small model.
#pragma once

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_text.h"
#include "model/checkpoint/checkpoint.h"
#include "model/testing/test_folder.h"

namespace nvllm::model {

enum class GgufType : std::uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q8_0 = 8,
  q4_k = 12,
  bf16 = 30,
  mxfp4 = 39
};

class GgufBuilder {
 public:
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;
  // The counts in the header; correct unless set.
  std::uint64_t tensor_count = kTrue, pair_count = kTrue;

  template <typename T>
  static std::string bytes_of(T value) {
    std::string bytes(sizeof(T), '\0');
    std::memcpy(bytes.data(), &value, sizeof(T));
    return bytes;
  }
  static std::string bytes_of_string(std::string_view text) {
    return bytes_of(std::uint64_t{text.size()}).append(text);
  }

  // A key, the number of a value type, the value's bytes.
  GgufBuilder& raw(std::string_view key, std::uint32_t type, const std::string& value) {
    pairs_ += bytes_of_string(key) + bytes_of(type) + value;
    ++pairs_written_;
    return *this;
  }
  GgufBuilder& u32(std::string_view key, std::uint32_t value) {
    return raw(key, 4, bytes_of(value));
  }
  GgufBuilder& f32(std::string_view key, float value) { return raw(key, 6, bytes_of(value)); }
  GgufBuilder& text(std::string_view key, std::string_view value) {
    return raw(key, 8, bytes_of_string(value));
  }
  GgufBuilder& texts(std::string_view key, const std::vector<std::string>& values) {
    std::string bytes = bytes_of(std::uint32_t{8}) + bytes_of(std::uint64_t{values.size()});
    for (const std::string& value : values) bytes += bytes_of_string(value);
    return raw(key, 9, bytes);
  }

  // int32
  GgufBuilder& numbers(std::string_view key, const std::vector<std::int32_t>& values) {
    std::string bytes = bytes_of(std::uint32_t{5}) + bytes_of(std::uint64_t{values.size()});
    for (const std::int32_t value : values) bytes += bytes_of(value);
    return raw(key, 9, bytes);
  }

  // Dimensions in file order, columns first. Uses the next free offset.
  GgufBuilder& tensor(std::string_view name, GgufType type, const std::vector<std::uint64_t>& dims,
                      const std::string& data) {
    tensor_at(name, static_cast<std::uint32_t>(type), dims, data_.size());
    data_ += data;
    data_.resize((data_.size() + alignment - 1) / alignment * alignment, '\0');
    return *this;
  }
  // Lists a tensor without writing data.
  GgufBuilder& tensor_at(std::string_view name, std::uint32_t type,
                         const std::vector<std::uint64_t>& dims, std::uint64_t offset) {
    tensors_ += bytes_of_string(name) + bytes_of(static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t dim : dims) tensors_ += bytes_of(dim);
    tensors_ += bytes_of(type) + bytes_of(offset);
    ++tensors_written_;
    return *this;
  }
  // An F32 tensor in which element i is i.
  GgufBuilder& counting(std::string_view name, const std::vector<std::uint64_t>& dims) {
    std::uint64_t elements = 1;
    for (const std::uint64_t dim : dims) elements *= dim;
    std::string data;
    for (std::uint64_t i = 0; i < elements; ++i) data += bytes_of(static_cast<float>(i));
    return tensor(name, GgufType::f32, dims, data);
  }

  std::string header() const {
    return "GGUF" + bytes_of(version) +
           bytes_of(tensor_count == kTrue ? tensors_written_ : tensor_count) +
           bytes_of(pair_count == kTrue ? pairs_written_ : pair_count) + pairs_ + tensors_;
  }
  std::string file() const {
    std::string bytes = header();
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment, '\0');
    return bytes + data_;
  }

 private:
  static constexpr std::uint64_t kTrue = ~std::uint64_t{0};

  std::uint64_t pairs_written_ = 0, tensors_written_ = 0;
  std::string pairs_, tensors_, data_;
};

// Metadata of a model with 2 heads of size 4, 1 KV head, 3 tokens, 1 layer.
inline GgufBuilder metadata_of(const std::string& architecture) {
  GgufBuilder b;
  b.text("general.architecture", architecture);
  b.u32(architecture + ".block_count", 1).u32(architecture + ".context_length", 128);
  b.u32(architecture + ".embedding_length", 8).u32(architecture + ".feed_forward_length", 6);
  b.u32(architecture + ".attention.head_count", 2);
  b.u32(architecture + ".attention.head_count_kv", 1);
  b.f32(architecture + ".attention.layer_norm_rms_epsilon", 1e-5f);
  return b;
}

inline GgufBuilder& add_embedding(GgufBuilder& b) {
  return b.counting("token_embd.weight", {8, 3});
}

inline Checkpoint open(const GgufBuilder& builder) {
  const TestFolder folder;
  folder.write("model.gguf", builder.file());
  return open_checkpoint(folder.path());
}

inline nlohmann::json config_of(const GgufBuilder& builder) {
  return parse_json(open(builder).config_json());
}

inline std::string error_of_file(const GgufBuilder& builder) {
  const TestFolder folder;
  folder.write("model.gguf", builder.file());
  return error_of(folder, "model.gguf");
}

}  // namespace nvllm::model
