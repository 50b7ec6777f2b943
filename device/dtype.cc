#include "device/dtype.h"

namespace nvllm {

float to_float(F16 value) {
  const std::uint32_t sign = (value.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00) {  // infinity, or a NaN, which becomes quiet
    const std::uint32_t quiet = magnitude > 0x7c00 ? 0x400000u : 0;
    return std::bit_cast<float>(sign | 0x7f800000u | quiet | (magnitude & 0x3ff) << 13);
  }
  // The bits of a binary16, moved to their place in a float, mean a value 2^112 times too small,
  // also where they are subnormal in both.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(scaled));
}

template <>
F16 from_float<F16>(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    half = 0x7c00;
  } else if (magnitude >= 0x38800000u) {  // 2^-14 and above: normal
    const std::uint32_t rebased = magnitude - (112u << 23);
    half = (rebased + 0xfff + ((rebased >> 13) & 1)) >> 13;
  } else {
    // Adding 0.5 puts the last kept bit, 2^-24, at the end of the float's mantissa: the addition
    // rounds.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    half = std::bit_cast<std::uint32_t>(sum) - std::bit_cast<std::uint32_t>(0.5f);
  }
  return {static_cast<std::uint16_t>(sign | half)};
}

}  // namespace nvllm
