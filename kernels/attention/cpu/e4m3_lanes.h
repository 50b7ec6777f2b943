// Lanes for all element types of a KV cache: those of the instruction set's Lanes, and E4m3.
// Include after the Lanes of an instruction set; in an unnamed namespace like them.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/common/cpu/e4m3_vector.h"

namespace nvllm::kernels::cpu {
namespace {

template <typename T>
Lanes::Floats load_lanes(const T* from) {
  return Lanes::load(from);
}
// The first `count` elements, 1 to kCount; the rest are zeros.
template <typename T>
Lanes::Floats load_lanes_part(const T* from, std::int64_t count) {
  return Lanes::load_part(from, count);
}

template <>
inline Lanes::Floats load_lanes(const E4m3* from) {
#if defined(NVLLM_AVX512)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  const __m256i halves = _mm256_set_m128i(e4m3_as_half(_mm_cvtepu8_epi16(_mm_srli_si128(bytes, 8))),
                                          e4m3_as_half(_mm_cvtepu8_epi16(bytes)));
  return _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256));
#else
  return load8_e4m3(from);
#endif
}
template <>
inline Lanes::Floats load_lanes_part(const E4m3* from, std::int64_t count) {
  E4m3 padded[Lanes::kCount] = {};
  std::memcpy(padded, from, static_cast<std::size_t>(count));
  return load_lanes(static_cast<const E4m3*>(padded));
}

}  // namespace
}  // namespace nvllm::kernels::cpu
