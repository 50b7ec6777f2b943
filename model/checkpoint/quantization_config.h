// Reads the quantization_config of a config.json, and rejects what is not supported.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nvllm::model {

// Properties that the tensors do not show themselves.
struct QuantizationConfig {
  std::string method;  // "fp8", "awq", "gptq", "compressed-tensors", "mxfp4"
  std::int64_t block_outputs = 0, block_inputs = 0;  // of FP8; 0: unspecified
  int zero_offset = 0;                               // of GPTQ
  std::int64_t group_size = 0;                       // of INT4; 0: unspecified
};

// Returns nothing if there is none, or if the configuration is not a JSON object, which its reader
// reports. `where`: its path. Throws an Error that names what is not supported.
std::optional<QuantizationConfig> read_quantization_config(std::string_view config_json,
                                                           const std::string& where);

}  // namespace nvllm::model
