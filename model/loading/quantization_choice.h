// The user's choice of weight quantization (--quantization, --activation-quant).
#pragma once

#include <cstdint>

namespace nvllm::model {

struct QuantizationChoice {
  enum class Format : std::uint8_t {
    automatic,  // as in the checkpoint
    none,       // dequantized
    fp8,        // fp8 and below: weights stored as floats are quantized while loading
    int8,
    int4
  };
  Format format = Format::automatic;
  bool weight_only = false;  // activations are never quantized

  bool operator==(const QuantizationChoice&) const = default;
};

// The value of --quantization.
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
