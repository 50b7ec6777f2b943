// quantization_config of a config.json: what it says of a checkpoint's quantized weights, and what
// of it is not supported.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nvllm::model {

// What the tensors do not say themselves.
struct QuantizationConfig {
  std::string method;  // "fp8", "awq", "gptq", "compressed-tensors", "mxfp4"
  std::int64_t block_outputs = 0, block_inputs = 0;  // of FP8; 0: it does not say
  int zero_offset = 0;                               // of GPTQ
  std::int64_t group_size = 0;                       // of INT4; 0: it does not say
};

// Nothing if there is none, or the configuration is no JSON object: who reads that says so.
// `where`: its path. An Error names what is not supported.
std::optional<QuantizationConfig> read_quantization_config(std::string_view config_json,
                                                           const std::string& where);

}  // namespace nvllm::model
