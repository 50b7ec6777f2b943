// Lanes: sixteen floats at a time (AVX-512 F, BW, VL, DQ), from and to the element types, rounding
// exactly as device/dtype.h does. In an unnamed namespace for the reason that lanes_avx2.h gives.
#pragma once

// GCC 12 warns of the undefined operands that its own intrinsics leave undefined on purpose.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // with sanitizers
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <cstdint>

#include "device/dtype.h"

namespace nvllm::kernels::cpu {
namespace {

struct Lanes {
  static constexpr int kCount = 16;
  static constexpr int kAccumulators = 24;  // fit the registers in addition to operands
  using Floats = __m512;

  static Floats zero() { return _mm512_setzero_ps(); }
  static Floats all(float value) { return _mm512_set1_ps(value); }
  static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }

  static Floats load(const float* from) { return _mm512_loadu_ps(from); }
  static Floats load(const Bf16* from) { return widen_bf16(_mm256_loadu_si256(as_words(from))); }
  static Floats load(const F16* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(as_words(from)));
  }
  // The first `count` elements, 1 to kCount; the rest are zeros.
  static Floats load_part(const float* from, std::int64_t count) {
    return _mm512_maskz_loadu_ps(first(count), from);
  }
  static Floats load_part(const Bf16* from, std::int64_t count) {
    return widen_bf16(_mm256_maskz_loadu_epi16(first(count), from));
  }
  static Floats load_part(const F16* from, std::int64_t count) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(count), from));
  }

  static void store(float* to, Floats value) { _mm512_storeu_ps(to, value); }
  static void store(Bf16* to, Floats value) { store_words(to, narrow_to_bf16(value)); }
  static void store(F16* to, Floats value) { store_words(to, narrow_to_f16(value)); }
  static void store_part(float* to, Floats value, std::int64_t count) {
    _mm512_mask_storeu_ps(to, first(count), value);
  }
  static void store_part(Bf16* to, Floats value, std::int64_t count) {
    _mm256_mask_storeu_epi16(to, first(count), narrow_to_bf16(value));
  }
  static void store_part(F16* to, Floats value, std::int64_t count) {
    _mm256_mask_storeu_epi16(to, first(count), narrow_to_f16(value));
  }
  static float sum(Floats value) { return _mm512_reduce_add_ps(value); }

  // Pairs of bfloat16: the first ones and the second ones, as floats.
  static Floats load_pairs(const Bf16* from) {
    return _mm512_castsi512_ps(_mm512_loadu_si512(from));
  }
  static Floats load_pairs_part(const Bf16* from, std::int64_t count) {
    const auto mask = static_cast<__mmask32>((std::uint64_t{1} << count) - 1);
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, from));
  }
  static Floats first_of(Floats pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16));
  }
  static Floats second_of(Floats pairs) {
    return _mm512_and_ps(pairs, _mm512_castsi512_ps(_mm512_set1_epi32(-65536)));
  }

  // Lane j of value i becomes lane i of value j.
  static void transpose(Floats (&values)[kCount]) {
    Floats a[kCount], b[kCount];
    for (int i = 0; i < kCount; i += 2) {
      a[i] = _mm512_unpacklo_ps(values[i], values[i + 1]);
      a[i + 1] = _mm512_unpackhi_ps(values[i], values[i + 1]);
    }
    for (int i = 0; i < kCount; i += 4) {
      b[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
      b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
      b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
      b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    // b[4 i + j] holds, in its quarter q, lane 4 q + j of values 4 i to 4 i + 3.
    for (int j = 0; j < 4; ++j) {
      const Floats low01 = _mm512_shuffle_f32x4(b[j], b[4 + j], 0x44);
      const Floats high01 = _mm512_shuffle_f32x4(b[j], b[4 + j], 0xee);
      const Floats low23 = _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0x44);
      const Floats high23 = _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0xee);
      values[j] = _mm512_shuffle_f32x4(low01, low23, 0x88);
      values[4 + j] = _mm512_shuffle_f32x4(low01, low23, 0xdd);
      values[8 + j] = _mm512_shuffle_f32x4(high01, high23, 0x88);
      values[12 + j] = _mm512_shuffle_f32x4(high01, high23, 0xdd);
    }
  }

 private:
  static void store_words(void* to, __m256i words) {
    _mm256_storeu_si256(static_cast<__m256i*>(to), words);
  }
  static __m256i narrow_to_f16(Floats value) {
    return _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static __m256i narrow_to_bf16(Floats value) {
#ifdef __AVX512BF16__
    return (__m256i)_mm512_cvtneps_pbh(
        value);  // makes subnormals zero, as the dot instruction does
#else
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    const __m512i rounded = _mm512_mask_mov_epi32(_mm512_add_epi32(bits, bias), nan, quiet);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
#endif
  }
  template <typename T>
  static const __m256i* as_words(const T* from) {
    return reinterpret_cast<const __m256i*>(from);
  }
  static __mmask16 first(std::int64_t count) {
    return static_cast<__mmask16>((1u << count) - 1);
  }
  static Floats widen_bf16(__m256i bits) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
};

}  // namespace
}  // namespace nvllm::kernels::cpu
