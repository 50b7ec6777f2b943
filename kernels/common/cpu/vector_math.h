// Functions of eight floats at a time. What they are off by is in units of 2^-24, relative to the
// result; NaN gives NaN.
#pragma once

#include <immintrin.h>

#include <initializer_list>

namespace nvllm::kernels {

// e^x within 3 units. Results below 2^-126.5 are 0, those above 2^127.5 infinity.
inline __m256 exp8(__m256 x) {
  // x = n ln 2 + r, |r| <= ln 2 / 2. The bounds make n -127, whose power of two below is 0, and 128,
  // whose is infinity. (max and min return their second operand if one is NaN.)
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

// (1 + erf(x / sqrt(2))) / 2, the share of a normal distribution below x, within 8 units; results below
// 2^-126 are 0.
inline __m256 normal_share8(__m256 x) {
  // Below -|x| lies e^(-x^2 / 2) t S(t), t = 1 / (1 + 0.35 |x|). S is a polynomial that interpolates
  // at the Chebyshev points of |x| <= 14, good to 4e-8.
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
