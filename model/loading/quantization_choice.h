// What a user wants of a model's weights (--quantization, --activation-quant).
#pragma once

#include <cstdint>

namespace nvllm::model {

struct QuantizationChoice {
  enum class Format : std::uint8_t {
    automatic,  // as the checkpoint has it
    none,       // floats
    fp8,        // these: what is stored as floats is quantized while it is loaded
    int8,
    int4
  };
  Format format = Format::automatic;
  bool weight_only = false;  // activations are never quantized

  bool operator==(const QuantizationChoice&) const = default;
};

// As --quantization has it.
constexpr const char* name_of(QuantizationChoice::Format format) {
  using Format = QuantizationChoice::Format;
  switch (format) {
    case Format::automatic: return "auto";
    case Format::none: return "none";
    case Format::fp8: return "fp8";
    case Format::int8: return "int8";
    case Format::int4: return "int4";
  }
  return "?";
}

}  // namespace nvllm::model
