// The arithmetic of sampling, with the same bits on every device: order keys, Gumbel noise and
// masses. Every multiply that feeds an addition is an explicit fused multiply-add, so that no
// compiler has a choice.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/common/host_device.h"

namespace nvllm::kernels {

NVLLM_HOST_DEVICE std::uint32_t bits_of_float(float value) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(value);
#else
  return __builtin_bit_cast(std::uint32_t, value);
#endif
}

NVLLM_HOST_DEVICE float float_of_bits(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}

NVLLM_HOST_DEVICE float fused(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

// A polynomial of x by Horner's rule; the coefficient of the highest power comes first.
NVLLM_HOST_DEVICE float polynomial(float /*x*/, float sum) {
  return sum;
}
template <typename... Floats>
NVLLM_HOST_DEVICE float polynomial(float x, float sum, float next, Floats... others) {
  return polynomial(x, fused(sum, x, next), others...);
}

// Order-preserving keys: a < b exactly if key(a) < key(b), zeros are equal; NaN has the lowest key,
// 0.
NVLLM_HOST_DEVICE std::uint32_t order_key(float value) {
  const std::uint32_t bits = bits_of_float(value + 0.0f);  // -0 becomes 0
  if (value != value) return 0;
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
inline constexpr std::uint32_t kLowestKey = 0x007fffffu;   // of -infinity
inline constexpr std::uint32_t kHighestKey = 0xff800000u;  // of infinity

// The inverse of order_key(); -infinity for NaN's key.
NVLLM_HOST_DEVICE float value_of_key(std::uint32_t key) {
  if (key < kLowestKey) key = kLowestKey;
  return float_of_bits(key >> 31 ? key & 0x7fffffffu : ~key);
}

// A candidate: a token with its score (its logit, or that plus noise) in one integer. The larger
// one is better; ties go to the lower id. It is never 0, which means none.
NVLLM_HOST_DEVICE std::uint64_t candidate(float score, std::uint32_t id) {
  return std::uint64_t{order_key(score)} << 32 | (0xffffffffu - id);
}
NVLLM_HOST_DEVICE std::uint32_t id_of_candidate(std::uint64_t candidate) {
  return 0xffffffffu - static_cast<std::uint32_t>(candidate);
}
NVLLM_HOST_DEVICE float score_of_candidate(std::uint64_t candidate) {
  return value_of_key(static_cast<std::uint32_t>(candidate >> 32));
}

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// ln x, 0 < x < infinity, not subnormal; within 2^-23 of it or of 1, whichever is larger.
NVLLM_HOST_DEVICE float logarithm(float x) {
  constexpr std::uint32_t kRootOfHalf = 0x3f3504f3;
  const std::uint32_t bits = bits_of_float(x);
  const auto exponent = static_cast<std::int32_t>(bits - kRootOfHalf) >> 23;
  const float f = float_of_bits(bits - (static_cast<std::uint32_t>(exponent) << 23)) - 1.0f;
  // (ln(1 + f) - f) / f^2 at the Chebyshev points, accurate to 6e-8.
  const float sum =
      polynomial(f, -0.0767364151f, 0.127226728f, -0.131275556f, 0.14204856f, -0.166266456f,
                 0.200012345f, -0.250007812f, 0.3333333f, -0.499999976f);
  return fused(static_cast<float>(exponent), 0.693147181f, fused(f * f, sum, f));
}

// Gumbel noise, -ln(-ln(1 - v)), of v = (bits + 1/2) / 2^32. Its upper tail is as fine as 32 bits
// allow: the highest value, 22.9, is that of bits 0.
NVLLM_HOST_DEVICE float gumbel(std::uint32_t bits) {
  float exponential;
  if (bits < 0x80000000u) {
    const float v = fused(static_cast<float>(bits), 0x1p-32f, 0x1p-33f);
    // -ln(1 - v) / v, accurate to 5e-9.
    const float sum =
        polynomial(v, 1.73361199f, -2.45896198f, 1.95987066f, -0.590088747f, 0.340746484f,
                   0.17544077f, 0.251956794f, 0.333255162f, 0.500001199f, 1.0f);
    exponential = v * sum;
  } else {
    exponential = -logarithm(fused(static_cast<float>(~bits), 0x1p-32f, 0x1p-33f));
  }
  return -logarithm(exponential);
}

// Upper bounds of gumbel(bits), for quickly ruling out tokens that cannot win.
inline constexpr float kMaxGumbel = 22.9f;  // for any bits
// -ln v, with log2 v linearly interpolated between powers of two: the bits of a float are that
// interpolation, 2^23 times (the logarithm plus 127). Bits 0 correspond to v = 2^-159.
inline constexpr float kGumbelOfPower = 0.69315f;  // ln 2 = 0.693147..., plus a margin for rounding
inline constexpr float kGumbelOfLine = -kGumbelOfPower * 0x1p-23f;
inline constexpr float kGumbelOfZero = kGumbelOfPower * (127 + 32) + 1e-4f;
NVLLM_HOST_DEVICE float max_gumbel(std::uint32_t bits) {
  const auto line = static_cast<float>(bits_of_float(static_cast<float>(bits)));
  return fused(line, kGumbelOfLine, kGumbelOfZero);
}

// The noise keys of a sequence at a position.
NVLLM_HOST_DEVICE constexpr RandomKeys noise_keys(std::uint64_t seed, std::int32_t position) {
  return RandomKeys(seed, static_cast<std::uint32_t>(position));
}

// e^d, d <= 0, in units of 2^-40, rounded down: up to 2^23 such masses can be summed exactly in any
// order. NaN and values below e^-28 yield 0.
inline constexpr int kMassBits = 40;
NVLLM_HOST_DEVICE std::uint64_t mass_of(float d) {
  if (!(d > -40.0f)) return 0;
  constexpr float kOneByLn2 = 1.44269504f;
#ifdef __CUDA_ARCH__
  const float n = rintf(d * kOneByLn2);
#else
  const float n = __builtin_rintf(d * kOneByLn2);
#endif
  const float r = fused(d, kOneByLn2, -n);
  // 2^r, |r| <= 1/2, accurate to 3e-9.
  const float power = polynomial(r, 0.000154614447f, 0.00134004282f, 0.00961805668f, 0.0555032723f,
                                 0.240226509f, 0.693147207f, 1.0f);
  const std::uint64_t units = static_cast<std::uint32_t>(power * 0x1p24f);  // exact
  const int shift = kMassBits - 24 + static_cast<int>(n);
  return shift >= 0 ? units << shift : units >> -shift;
}

}  // namespace nvllm::kernels
