// Element types, and the 16-bit floats as values.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace nvllm {

enum class DType : std::uint8_t { f32, bf16, f16, i32, i64, u8 };

constexpr std::size_t size_of(DType type) {
  switch (type) {
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::i64: return 8;
    case DType::u8: return 1;
  }
  return 0;
}

constexpr const char* name_of(DType type) {
  switch (type) {
    case DType::f32: return "float32";
    case DType::bf16: return "bfloat16";
    case DType::f16: return "float16";
    case DType::i32: return "int32";
    case DType::i64: return "int64";
    case DType::u8: return "uint8";
  }
  return "?";
}

// The upper half of a float.
struct Bf16 {
  std::uint16_t bits = 0;
};

// IEEE 754 binary16.
struct F16 {
  std::uint16_t bits = 0;
};

inline float to_float(float value) {
  return value;
}

inline float to_float(Bf16 value) {
  return std::bit_cast<float>(std::uint32_t{value.bits} << 16);
}

// Exact for every input.
float to_float(F16 value);

// Rounds to nearest, ties to even; overflow gives infinity; a NaN stays a (quiet) NaN.
template <typename T>
T from_float(float value);

template <>
inline float from_float<float>(float value) {
  return value;
}

template <>
inline Bf16 from_float<Bf16>(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

template <>
F16 from_float<F16>(float value);

// The element type of a C++ type, for templates.
template <typename T>
inline constexpr DType dtype_of = DType::u8;
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<Bf16> = DType::bf16;
template <>
inline constexpr DType dtype_of<F16> = DType::f16;
template <>
inline constexpr DType dtype_of<std::int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<std::int64_t> = DType::i64;

}  // namespace nvllm
