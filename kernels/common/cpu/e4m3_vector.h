// Vectors of E4m3 on the CPU: loads and stores of eight that round exactly as device/e4m3.h does.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "device/e4m3.h"

namespace nvllm::kernels {

// E4m3 bytes, one per 16-bit lane, as the float16 values 2^-8 times as large. A float16 can
// represent all of them, including subnormals, and its conversion to float handles those at full
// speed.
inline __m128i e4m3_as_half(__m128i lanes) {
  const __m128i spread = _mm_srai_epi16(_mm_slli_epi16(lanes, 8), 1);  // the sign stands twice
  const __m128i half = _mm_and_si128(spread, _mm_set1_epi16(static_cast<short>(0xbfff)));
  const __m128i largest = _mm_set1_epi16(0x3f80);  // the magnitude of a NaN
  const __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(half, largest), largest);
  return _mm_or_si128(half, _mm_and_si128(nan, _mm_set1_epi16(0x7e00)));
}

// Eight E4m3, times `factor`, which is 2^8 for their own values.
inline __m256 load8_e4m3(const E4m3* from, __m256 factor = _mm256_set1_ps(256)) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return _mm256_mul_ps(_mm256_cvtph_ps(e4m3_as_half(_mm_cvtepu8_epi16(bytes))), factor);
}

inline void store8_e4m3(E4m3* to, __m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
  const __m256 absolute =
      _mm256_min_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), value), _mm256_set1_ps(kMaxE4m3));
  const __m256i magnitude = _mm256_castps_si256(absolute);
  // As in from_float<E4m3>(): numbers with an exponent, and multiples of 2^-9.
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(magnitude, 20), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_add_epi32(_mm256_add_epi32(magnitude, odd), _mm256_set1_epi32(0x7ffff));
  const __m256i normal =
      _mm256_sub_epi32(_mm256_srli_epi32(rounded, 20), _mm256_set1_epi32(120 << 3));
  const __m256i shifted = _mm256_castps_si256(_mm256_add_ps(absolute, _mm256_set1_ps(0x1p14f)));
  const __m256i subnormal = _mm256_and_si256(shifted, _mm256_set1_epi32(0xf));
  const __m256 is_small = _mm256_cmp_ps(absolute, _mm256_set1_ps(0x1p-6f), _CMP_LT_OQ);
  const __m256 is_nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
  __m256i lanes = _mm256_blendv_epi8(normal, subnormal, _mm256_castps_si256(is_small));
  lanes = _mm256_or_si256(lanes, sign);
  lanes = _mm256_blendv_epi8(lanes, _mm256_set1_epi32(0x7f), _mm256_castps_si256(is_nan));
  const __m128i words =
      _mm_packus_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
}

// `count` elements, any number, times `factor`.
template <typename T, typename Load>
void store_e4m3(E4m3* to, const T* from, std::int64_t count, float factor, const Load& load) {
  const __m256 factors = _mm256_set1_ps(factor);
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) store8_e4m3(to + i, _mm256_mul_ps(load(from + i), factors));
  for (; i < count; ++i) to[i] = from_float<E4m3>(to_float(from[i]) * factor);
}

}  // namespace nvllm::kernels
