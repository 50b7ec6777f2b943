// Blocks of quantized weights with AVX2: see quantized_dot.h. Both halves of a block have the same
// scale layout.
#pragma once

#include "kernels/common/cpu/lanes_avx2.h"
#include "kernels/gemm/cpu/quantized_activations.h"

namespace nvllm::kernels::cpu {
namespace {

struct BlockLanes {
  // kPairs scales and offsets, contiguous; zero-padded.
  template <int kPairs>
  static __m256 load_scales(const std::byte* from) {
    __m128i words;
    if constexpr (kPairs == 4) words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    if constexpr (kPairs == 2) words = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    if constexpr (kPairs == 1) words = _mm_loadu_si32(from);
    return _mm256_cvtph_ps(words);
  }
  // Broadcasts to each dword of half a block its scale (0) or its offset (1).
  template <int kPairs, int kOffset>
  static __m256 spread(__m256 scales) {
    const auto index = [](int k) { return k * kPairs / 4 * 2 + kOffset; };
    const __m128i four = _mm_setr_epi32(index(0), index(1), index(2), index(3));
    return _mm256_permutevar8x32_ps(scales, _mm256_broadcastsi128_si256(four));
  }
  // Broadcasts the powers of two of four bytes to the dwords of half a block.
  static __m256 load_powers(const std::byte* from) {
    const __m128i four = _mm_slli_epi32(_mm_cvtepu8_epi32(_mm_loadu_si32(from)), 23);
    return _mm256_castsi256_ps(_mm256_broadcastsi128_si256(four));
  }
  // Eight e2m1 values, in the lowest bits of dwords: three bits index the magnitude.
  static __m256 e2m1_numbers(__m256i codes) {
    const __m256 magnitudes = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
    const __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(_mm256_slli_epi32(codes, 28), 31), 31);
    return _mm256_or_ps(_mm256_permutevar8x32_ps(magnitudes, codes), _mm256_castsi256_ps(sign));
  }
  static __m256 e2m1_numbers(const std::uint8_t* from) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return e2m1_numbers(_mm256_cvtepu8_epi32(bytes));
  }
  static __m256 repeat_four(const float* from) {
    return _mm256_broadcast_ps(reinterpret_cast<const __m128*>(from));
  }
  static __m256 load_eight(const float* from) { return _mm256_load_ps(from); }
  static __m256 multiply(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
  static __m256 to_floats(__m256i integers) { return _mm256_cvtepi32_ps(integers); }

  // Eight bytes as floats: integers minus `zero`; or fp8 reinterpreted as a float16, whose exponent
  // bias differs: 2^-8 times the value.
  static __m256 integer_numbers(const std::uint8_t* from, int zero) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return _mm256_cvtepi32_ps(
        _mm256_sub_epi32(_mm256_cvtepu8_epi32(bytes), _mm256_set1_epi32(zero)));
  }
  static __m256 fp8_numbers(const std::uint8_t* from) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return fp8_numbers(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 8));
  }
  // In the upper bytes of words.
  static __m256 fp8_numbers(__m128i words) {
    return _mm256_cvtph_ps(
        _mm_and_si128(_mm_srai_epi16(words, 1), _mm_set1_epi16(static_cast<short>(0xbf80))));
  }

  // The sums of four vectors.
  static __m128 sum4(__m256 a, __m256 b, __m256 c, __m256 d) {
    const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    const __m256 abcd =
        _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    return _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1));
  }
};

inline __m256i load_half(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

// A block as floats without scale: get(v) are floats 8 v to 8 v + 7 in the order of
// order_activations.
template <WeightFormat kFormat>
struct Numbers;

template <>
struct Numbers<WeightFormat::int4> {
  static constexpr int kVectors = 16;
  const std::byte* from;
  explicit Numbers(const std::byte* from) : from(from) {}
  __m256 get(int v) const {
    const __m256i half =
        _mm256_xor_si256(load_half(from + v % 2 * 32), _mm256_set1_epi8(static_cast<char>(0x88)));
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(half, 28 - v / 2 * 4), 28));
  }
};

template <>
struct Numbers<WeightFormat::mxfp4> {
  static constexpr int kVectors = 16;
  const std::byte* from;
  explicit Numbers(const std::byte* from) : from(from) {}
  __m256 get(int v) const {
    return BlockLanes::e2m1_numbers(_mm256_srli_epi32(load_half(from + v % 2 * 32), v / 2 * 4));
  }
};

template <>
struct Numbers<WeightFormat::int8> {
  static constexpr int kVectors = 8;
  const std::byte* from;
  explicit Numbers(const std::byte* from) : from(from) {}
  __m256 get(int v) const {
    const __m256i half = _mm256_xor_si256(load_half(from + v % 2 * 32), _mm256_set1_epi8(-128));
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(half, 24 - v / 2 * 8), 24));
  }
};

// See fp8_numbers.
template <>
struct Numbers<WeightFormat::fp8> {
  static constexpr int kVectors = 8;
  static constexpr float kFactor = 256;  // to be multiplied by
  const std::byte* from;
  explicit Numbers(const std::byte* from) : from(from) {}
  __m256 get(int v) const {
    // Two threads' bytes.
    const std::byte* const at = from + v / 4 * 8 + v % 2 * 32;
    const __m128i words =
        _mm_unpacklo_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)),
                           _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at + 16)));
    return BlockLanes::fp8_numbers(v / 2 % 2 == 0 ? _mm_slli_epi16(words, 8) : words);
  }
};

// The dot products of a block of integers with one of quantized activations: the dword sums of both
// halves.
template <WeightFormat kFormat>
struct Integers;

template <>
struct Integers<WeightFormat::int4> {
  static constexpr int kZero = 8;  // left to be subtracted from each
  __m256i parts[4];
  explicit Integers(const std::byte* from) {
    const __m256i mask = _mm256_set1_epi8(15);
    for (int half = 0; half < 2; ++half) {
      const __m256i bytes = load_half(from + half * 32);
      parts[half] = _mm256_and_si256(bytes, mask);
      parts[2 + half] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask);
    }
  }
  __m256i dot(const std::int8_t* x) const {
    __m256i words = _mm256_setzero_si256();  // 8 terms of 15 * 127 fit
    for (int part = 0; part < 4; ++part) {
      words = _mm256_add_epi16(words, _mm256_maddubs_epi16(parts[part], load_half(x + part * 32)));
    }
    return _mm256_madd_epi16(words, _mm256_set1_epi16(1));
  }
};

// A sum of two 8-bit terms fits 16 bits only if one factor is at most 128 in magnitude, not 255.
template <>
struct Integers<WeightFormat::int8> {
  static constexpr int kZero = 0;
  __m256i halves[2];
  explicit Integers(const std::byte* from) {
    for (int half = 0; half < 2; ++half)
      halves[half] = _mm256_xor_si256(load_half(from + half * 32), _mm256_set1_epi8(-128));
  }
  __m256i dot(const std::int8_t* x) const {
    __m256i sums = _mm256_setzero_si256();
    for (int half = 0; half < 2; ++half) {
      const __m256i words = _mm256_maddubs_epi16(
          _mm256_abs_epi8(halves[half]), _mm256_sign_epi8(load_half(x + half * 32), halves[half]));
      sums = _mm256_add_epi32(sums, _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
    }
    return sums;
  }
};

}  // namespace
}  // namespace nvllm::kernels::cpu
