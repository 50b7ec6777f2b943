// Tensor values, for converting a safetensors checkpoint to GGUF.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "device/backend.h"
#include "model/checkpoint/checkpoint.h"
#include "model/testing/gguf_builder.h"

namespace nvllm::model {

struct GgufValues {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

// Any tensor, dequantized.
GgufValues read_values(const Checkpoint& checkpoint, const std::string& name, Backend& backend);

// The bytes of a tensor in F32, BF16, or a type with blocks of 32.
std::string encode_values(const GgufValues& tensor, GgufType type);

// Permutes rows: row i of the result is row rows[i].
GgufValues rows_of(const GgufValues& tensor, const std::vector<std::int64_t>& rows);
GgufValues transposed(const GgufValues& tensor);

// The language model's part of a configuration.
nlohmann::json text_config_of(const Checkpoint& checkpoint);

}  // namespace nvllm::model
