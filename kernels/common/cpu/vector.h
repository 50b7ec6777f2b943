// Eight floats at a time (AVX2), from and to the element types, rounding exactly as device/dtype.h
// does. For .cc files of CPU kernels.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "device/dtype.h"

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

}  // namespace nvllm::kernels
