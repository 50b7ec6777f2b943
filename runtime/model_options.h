#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "device/dtype.h"

namespace nvllm::runtime {

enum class LoadFormat : std::uint8_t { automatic, dummy, safetensors, gguf };

// Which model, and how, as the command line says it.
struct ModelOptions {
  std::string path;  // a folder, a config.json or a .gguf file
  LoadFormat format = LoadFormat::automatic;
  std::string overrides = "";  // --hf-overrides: a JSON object, or empty
  std::optional<DType> dtype =
      std::nullopt;  // absent: the model's own, bfloat16 where that is float32
};

}  // namespace nvllm::runtime
