// Vectors of eight floats (AVX2) for CPU kernels: loads and stores that round exactly as
// device/dtype.h does, and functions of vectors. The errors of these are in units of 2^-24,
// relative to the result; NaN gives NaN.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>

#include "device/dtype.h"
#include "kernels/common/host_device.h"

namespace nvllm::kernels {

inline constexpr int kLanes = 8;

inline __m256 load8(const float* from) {
  return _mm256_loadu_ps(from);
}

inline __m256 load8(const Bf16* from) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

inline __m256 load8(const F16* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

inline void store8(float* to, __m256 value) {
  _mm256_storeu_ps(to, value);
}

inline void store8(Bf16* to, __m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  const __m256i words = _mm256_blendv_epi8(rounded, quiet, nan);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(to),
      _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

inline void store8(F16* to, __m256 value) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// The first `count` elements, 1 to 7 of them, and zeros.
template <typename T>
__m256 load_some(const T* from, std::int64_t count) {
  T elements[kLanes] = {};
  std::memcpy(elements, from, count * sizeof(T));
  return load8(elements);
}

template <typename T>
void store_some(T* to, __m256 value, std::int64_t count) {
  T elements[kLanes];
  store8(elements, value);
  std::memcpy(to, elements, count * sizeof(T));
}

inline float sum8(__m256 value) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

// The largest of many floats, NaN aside; -infinity if there is none.
inline float max_of(const float* values, std::int64_t count) {
  constexpr int kVectors = 4;
  constexpr float kMin = -std::numeric_limits<float>::infinity();
  __m256 maximum[kVectors];
  for (__m256& lanes : maximum) lanes = _mm256_set1_ps(kMin);
  std::int64_t i = 0;
  for (; i + kVectors * kLanes <= count; i += kVectors * kLanes) {
    // max gives its second operand where one is NaN.
    for (int v = 0; v < kVectors; ++v) {
      maximum[v] = _mm256_max_ps(load8(values + i + v * kLanes), maximum[v]);
    }
  }
  maximum[0] =
      _mm256_max_ps(_mm256_max_ps(maximum[0], maximum[1]), _mm256_max_ps(maximum[2], maximum[3]));
  float lanes[kLanes];
  store8(lanes, maximum[0]);
  float best = kMin;
  for (const float value : lanes) best = value > best ? value : best;
  for (; i < count; ++i) best = values[i] > best ? values[i] : best;
  return best;
}

// e^x within 3 units. Results below 2^-126.5 are 0, those above 2^127.5 infinity.
inline __m256 exp8(__m256 x) {
  // x = n ln 2 + r, |r| <= ln 2 / 2. The bounds make n -127, whose power of two below is 0, and
  // 128, whose is infinity. (max and min return their second operand if one is NaN.)
  x = _mm256_min_ps(_mm256_set1_ps(89.0f), _mm256_max_ps(_mm256_set1_ps(-88.0f), x));
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(0x1.715476p+0f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // ln 2 in two parts; n times the first is exact.
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.62e4p-1f), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.7f7d1cp-20f), r);
  __m256 sum = _mm256_set1_ps(1.0f / 5040);
  for (const float factor : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
    sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(factor));
  }
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_mul_ps(sum, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}

// RandomKeys::bits() of eight indices.
inline __m256i random_bits8(const RandomKeys& keys, __m256i low) {
  const auto all = [](std::uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); };
  __m256i x = _mm256_xor_si256(low, all(keys.first));
  x = _mm256_mullo_epi32(_mm256_xor_si256(x, _mm256_srli_epi32(x, 16)), all(RandomKeys::kFactor1));
  x = _mm256_xor_si256(_mm256_xor_si256(x, _mm256_srli_epi32(x, 15)), all(keys.second));
  x = _mm256_mullo_epi32(x, all(RandomKeys::kFactor2));
  return _mm256_xor_si256(x, _mm256_srli_epi32(x, 15));
}

// (1 + erf(x / sqrt(2))) / 2, the share of a normal distribution below x, within 8 units; results
// below 2^-126 are 0.
inline __m256 normal_share8(__m256 x) {
  // Below -|x| lies e^(-x^2 / 2) t S(t), t = 1 / (1 + 0.35 |x|). S is a polynomial that
  // interpolates at the Chebyshev points of |x| <= 14, good to 4e-8.
  const __m256 sign = _mm256_and_ps(x, _mm256_set1_ps(-0.0f));
  const __m256 one = _mm256_set1_ps(1.0f);
  const __m256 size = _mm256_min_ps(_mm256_set1_ps(14.0f), _mm256_xor_ps(x, sign));
  const __m256 t = _mm256_div_ps(one, _mm256_fmadd_ps(size, _mm256_set1_ps(0.35f), one));
  __m256 sum = _mm256_set1_ps(-0.029679522f);
  for (const float factor : {0.14654583f, -0.260961229f, 0.165050996f, -0.0270466085f, 0.107114588f,
                             0.119444917f, 0.139912298f, 0.139618713f}) {
    sum = _mm256_fmadd_ps(sum, t, _mm256_set1_ps(factor));
  }
  // The square in two parts: its rounding would count as often as the exponent is large.
  const __m256 half = _mm256_mul_ps(size, _mm256_set1_ps(0.5f));
  const __m256 square = _mm256_mul_ps(half, size);
  const __m256 rest = _mm256_fmsub_ps(half, size, square);
  const __m256 minus = _mm256_set1_ps(-0.0f);
  __m256 power = exp8(_mm256_xor_ps(square, minus));
  power = _mm256_fnmadd_ps(power, rest, power);
  const __m256 below = _mm256_mul_ps(power, _mm256_mul_ps(sum, t));
  // The sign bit of x chooses.
  return _mm256_blendv_ps(_mm256_sub_ps(one, below), below, x);
}

}  // namespace nvllm::kernels
