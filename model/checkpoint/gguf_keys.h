// GgufKeys: the metadata of a GGUF file by keys without the architecture's name, as errors show
// them, and its tensors by name. What a family's configuration has of its own is added with it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "model/checkpoint/gguf.h"
#include "model/checkpoint/gguf_family.h"

namespace nvllm::model {

class GgufKeys {
 public:
  explicit GgufKeys(const GgufHeader& header)
      : header(header), metadata(header.metadata), family(gguf_family(metadata)) {}

  // ".block_count" of a "qwen2": "qwen2.block_count"
  std::string key(std::string_view name) const { return str(family.architecture, name); }

  // A number above 0 that must be there.
  std::int64_t size(std::string_view name) const {
    const std::int64_t value = metadata.required_integer(key(name));
    if (value <= 0) fail_value(name, "a number above 0", value);
    return value;
  }
  std::optional<std::int64_t> integer(std::string_view name) const {
    return metadata.integer(key(name));
  }
  std::optional<double> number(std::string_view name) const { return metadata.number(key(name)); }

  template <typename T>
  [[noreturn]] void fail_value(std::string_view name, std::string_view expected,
                               const T& found) const {
    fail(metadata.where(), ": metadata ", key(name), ": expected ", expected, ", found ", found);
  }

  // nullptr: there is none of that name in the file.
  const StoredTensor* tensor(std::string_view name) const {
    const auto found = std::ranges::find(header.tensors, name, &StoredTensor::stored_name);
    return found == header.tensors.end() ? nullptr : &*found;
  }
  // Whether some layer has one that ends so, ".attn_q.bias".
  bool in_some_layer(std::string_view ending) const {
    return std::ranges::any_of(header.tensors, [&](const StoredTensor& tensor) {
      return tensor.stored_name.starts_with("blk.") && tensor.stored_name.ends_with(ending);
    });
  }

  const GgufHeader& header;
  const GgufMetadata& metadata;
  const GgufFamily& family;
};

// A configuration keeps the order of insertion, in which people expect to read the keys.
using GgufConfig = nlohmann::ordered_json;

// What the configurations of these families have beside the common keys, which are there already.
void add_gemma3_keys(const GgufKeys& keys, std::int64_t head_dim, GgufConfig& config);
void add_gpt_oss_keys(const GgufKeys& keys, GgufConfig& config);
void add_linear_attention_keys(const GgufKeys& keys, std::int64_t head_dim, GgufConfig& config);
// `rope_factors`: of rope_freqs.weight
void add_gemma4_keys(const GgufKeys& keys, std::span<const float> rope_factors, GgufConfig& config);

// How many elements of a head of a model with linear attention are rotated.
std::int64_t gguf_rotary_dim(const GgufKeys& keys, std::int64_t head_dim);

}  // namespace nvllm::model
