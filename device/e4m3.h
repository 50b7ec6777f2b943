// E4m3: 8-bit floats for KV caches. Tensors of them have the type DType::u8. The format is OCP's
// "fn" variant: 4 exponent bits with a bias of 7, 3 mantissa bits, no infinities; the largest value
// is 448.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "device/dtype.h"

namespace nvllm {

struct E4m3 {
  std::uint8_t bits = 0;
};

inline constexpr float kMaxE4m3 = 448;

// Exact for every input; 0x7f and 0xff are NaN.
inline float to_float(E4m3 value) {
  const std::uint32_t magnitude = value.bits & 0x7fu, sign = (value.bits & 0x80u) << 24;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  // Shifted into place, the exponent is 120 less than a float's.
  return std::bit_cast<float>(sign | magnitude << 20) * 0x1p120f;
}

// Rounds to nearest, ties to even; larger values, including infinity, become 448; a NaN becomes
// 0x7f. The GPU's cvt.rn.satfinite.e4m3x2.f32 does the same.
template <>
inline E4m3 from_float<E4m3>(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {0x7f};
  const float absolute = std::bit_cast<float>(magnitude);
  if (absolute >= kMaxE4m3) return {static_cast<std::uint8_t>(sign | 0x7eu)};
  if (absolute < 0x1p-6f) {
    // Subnormal: a multiple of 2^-9, rounded into the lowest bits of the sum.
    const auto shifted = std::bit_cast<std::uint32_t>(absolute + 0x1p14f);
    return {static_cast<std::uint8_t>(sign | (shifted & 0xfu))};
  }
  const std::uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
  return {static_cast<std::uint8_t>(sign | ((rounded >> 20) - (120u << 3)))};
}

template <>
inline constexpr DType dtype_of<E4m3> = DType::u8;

}  // namespace nvllm
