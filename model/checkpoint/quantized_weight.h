// Weights in FP8, INT4 and MXFP4, whose scales are separate tensors: FP8 with scales per block, row
// or matrix, AWQ, GPTQ, compressed-tensors' packed INT4, and gpt-oss' experts.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/checkpoint/checkpoint.h"

namespace nvllm::model {

// The layout of the values of a matrix [outputs, inputs].
enum class QuantizedLayout : std::uint8_t {
  fp8,            // [outputs, inputs] F8_E4M3
  packed_inputs,  // [outputs, inputs / 8] I32: bits 4n of a word hold input 8i + n, plus 8
  awq,            // [inputs, outputs / 8] I32: bits 4n hold output 8i + kAwqOrder[n]
  gptq,           // [inputs / 8, outputs] I32: bits 4n hold input 8i + n
  mxfp4,          // [outputs, inputs / 2] U8: e2m1, of which bits 4n hold input 2i + n
};
inline constexpr int kAwqOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};

// weight[output, input] = (value - zero point) * scale, in float32. Zero points are packed like the
// values of AWQ, or of GPTQ, eight outputs in a word.
struct QuantizedWeight {
  QuantizedLayout layout = QuantizedLayout::fp8;
  StoredTensor values;
  // F32, F16 or BF16: [output / scale_outputs, group]; transposed for AWQ and GPTQ. For MXFP4 U8, s
  // for 2^(s - 127).
  StoredTensor scales;
  std::int64_t scale_outputs = 1, scale_inputs = 1;  // elements that share a scale
  std::int64_t groups = 1;                           // groups of inputs
  // I32: [group, outputs / 8]; absent: 8 for INT4, 0 for FP8 and MXFP4
  std::optional<StoredTensor> zeros;
  int zero_offset = 0;                   // added to the values of `zeros`
  std::optional<StoredTensor> group_of;  // I32: group of each input, if not input / scale_inputs

  bool transposed() const {
    return layout == QuantizedLayout::awq || layout == QuantizedLayout::gptq;
  }
};

// Replaces the tensors that hold quantized weights by the weights themselves, under the names that
// they would have without quantization, and drops scales of activations and of KV caches, which are
// not used here. `config_json`: the checkpoint's config.json; `where`: its path. Throws an Error
// that names what in its quantization_config or in the tensors is not supported or does not fit.
std::vector<StoredTensor> join_quantized(std::vector<StoredTensor> tensors,
                                         std::span<const CheckpointFile> files,
                                         std::string_view config_json, const std::string& where);

// The quantization_config of a config.json: properties that the tensors do not show themselves.
struct QuantizationConfig {
  std::string method;  // "fp8", "awq", "gptq", "compressed-tensors", "mxfp4"
  std::int64_t block_outputs = 0, block_inputs = 0;  // of FP8; 0: unspecified
  int zero_offset = 0;                               // of GPTQ
  std::int64_t group_size = 0;                       // of INT4; 0: unspecified
};

// Reads it, and rejects what is not supported. Returns nothing if there is none, or if the
// configuration is not a JSON object, which its reader reports. `where`: its path. Throws an Error
// that names what is not supported.
std::optional<QuantizationConfig> read_quantization_config(std::string_view config_json,
                                                           const std::string& where);

}  // namespace nvllm::model
