// Translates a GGUF file's metadata to Hugging Face's config.json, including Llama 3's RoPE
// scaling. Keys that all families have are in gguf_config.cc, those of some in gguf_family_keys.cc.
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

// `rope_factors`: the values of rope_freqs.weight; empty: none. Throws an Error that names any
// metadata that config.json cannot express or this program does not support.
std::string gguf_config_json(const GgufHeader& header, std::span<const float> rope_factors);

// The tensor with the factors of Llama 3's RoPE scaling, which is part of the configuration.
inline constexpr std::string_view kRopeFactors = "rope_freqs.weight";

// Llama 3's RoPE scaling as config.json describes it. Frequencies whose wavelength is above
// original / low_freq_factor positions are divided by the factor, those below original /
// high_freq_factor are kept, and those between are blended.
struct Llama3Scaling {
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  std::int64_t original_max_position_embeddings = 8192;
};

// The divisor of a frequency, given its wavelength.
double llama3_divisor(const Llama3Scaling& scaling, double wavelength);

// Finds the scaling with these divisors, one for each frequency theta^(-2i / head_dim), within the
// precision of float32. GGUF stores the divisors instead of the scaling. nullopt: there is none.
std::optional<Llama3Scaling> find_llama3_scaling(std::span<const float> divisors, double theta);

// The metadata of a GGUF file by keys without the architecture's prefix, which error messages
// include, and its tensors by name.
class GgufKeys {
 public:
  explicit GgufKeys(const GgufHeader& header)
      : header(header), metadata(header.metadata), family(gguf_family(metadata)) {}

  // ".block_count" of a "qwen2": "qwen2.block_count"
  std::string key(std::string_view name) const { return str(family.architecture, name); }

  // A required number above 0.
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

  // nullptr: no such tensor in the file.
  const StoredTensor* tensor(std::string_view name) const {
    const auto found = std::ranges::find(header.tensors, name, &StoredTensor::stored_name);
    return found == header.tensors.end() ? nullptr : &*found;
  }
  // Whether some layer has a tensor with this suffix, ".attn_q.bias".
  bool in_some_layer(std::string_view ending) const {
    return std::ranges::any_of(header.tensors, [&](const StoredTensor& tensor) {
      return tensor.stored_name.starts_with("blk.") && tensor.stored_name.ends_with(ending);
    });
  }

  const GgufHeader& header;
  const GgufMetadata& metadata;
  const GgufFamily& family;
};

// Preserves insertion order, in which people expect to read the keys.
using GgufConfig = nlohmann::ordered_json;

// Add the configuration keys of these families to the common keys, which have been added before.
void add_gemma3_keys(const GgufKeys& keys, std::int64_t head_dim, GgufConfig& config);
void add_gpt_oss_keys(const GgufKeys& keys, GgufConfig& config);
void add_linear_attention_keys(const GgufKeys& keys, std::int64_t head_dim, GgufConfig& config);
// `rope_factors`: the values of rope_freqs.weight
void add_gemma4_keys(const GgufKeys& keys, std::span<const float> rope_factors, GgufConfig& config);

// The number of rotated elements of a head in a model with linear attention.
std::int64_t gguf_rotary_dim(const GgufKeys& keys, std::int64_t head_dim);

}  // namespace nvllm::model
