// Blocks of quantized weights with AVX-512: see quantized_dot.h.
#pragma once

#include "kernels/common/cpu/lanes_avx512.h"
#include "kernels/gemm/cpu/quantized_activations.h"

namespace nvllm::kernels::cpu {
namespace {

struct BlockLanes {
  // kPairs scales and offsets, contiguous; zero-padded.
  template <int kPairs>
  static __m512 load_scales(const std::byte* from) {
    __m128i words;
    if constexpr (kPairs == 4) words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    if constexpr (kPairs == 2) words = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    if constexpr (kPairs == 1) words = _mm_loadu_si32(from);
    return _mm512_zextps256_ps512(_mm256_cvtph_ps(words));
  }
  // Broadcasts to each dword of a block its scale (0) or its offset (1).
  template <int kPairs, int kOffset>
  static __m512 spread(__m512 scales) {
    const auto index = [](int k) { return k * kPairs / 4 * 2 + kOffset; };
    const __m128i four = _mm_setr_epi32(index(0), index(1), index(2), index(3));
    return _mm512_permutexvar_ps(_mm512_broadcast_i32x4(four), scales);
  }
  // Broadcasts the powers of two of four bytes to the dwords of a block.
  static __m512 load_powers(const std::byte* from) {
    const __m128i four = _mm_slli_epi32(_mm_cvtepu8_epi32(_mm_loadu_si32(from)), 23);
    return _mm512_castsi512_ps(_mm512_broadcast_i32x4(four));
  }
  // 16 e2m1 values, in the lowest bits of dwords.
  static __m512 e2m1_numbers(__m512i codes) {
    const __m512 numbers =
        _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    return _mm512_permutexvar_ps(codes, numbers);
  }
  static __m512 e2m1_numbers(const std::uint8_t* from) {
    const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(from));
    return e2m1_numbers(_mm512_cvtepu8_epi32(bytes));
  }
  static __m512 repeat_four(const float* from) { return _mm512_broadcast_f32x4(_mm_load_ps(from)); }
  static __m512 load_eight(const float* from) {
    return _mm512_zextps256_ps512(_mm256_load_ps(from));
  }
  static __m512 multiply(__m512 a, __m512 b) { return _mm512_mul_ps(a, b); }
  static __m512 to_floats(__m512i integers) { return _mm512_cvtepi32_ps(integers); }

  // 16 bytes as floats: integers minus `zero`; or fp8 reinterpreted as a float16, whose exponent
  // bias differs: 2^-8 times the value.
  static __m512 integer_numbers(const std::uint8_t* from, int zero) {
    const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(from));
    return _mm512_cvtepi32_ps(
        _mm512_sub_epi32(_mm512_cvtepu8_epi32(bytes), _mm512_set1_epi32(zero)));
  }
  static __m512 fp8_numbers(const std::uint8_t* from) {
    const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(from));
    return fp8_numbers(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8));
  }
  // In the upper bytes of words.
  static __m512 fp8_numbers(__m256i words) {
    return _mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(words, 1),
                                            _mm256_set1_epi16(static_cast<short>(0xbf80))));
  }

  // The sums of four vectors.
  static __m128 sum4(__m512 a, __m512 b, __m512 c, __m512 d) {
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const __m512 abcd =
        _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    const __m256 half =
        _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  }
};

// A block as floats without scale: get(v) are floats 16 v to 16 v + 15 in the order of
// order_activations.
template <WeightFormat kFormat>
struct Numbers;

template <>
struct Numbers<WeightFormat::int4> {
  static constexpr int kVectors = 8;
  __m512i block;
  explicit Numbers(const std::byte* from) : block(_mm512_loadu_si512(from)) {}
  __m512 get(int v) const {
    const __m512 numbers = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    return _mm512_permutexvar_ps(_mm512_srli_epi32(block, static_cast<unsigned>(4 * v)), numbers);
  }
};

template <>
struct Numbers<WeightFormat::mxfp4> {
  static constexpr int kVectors = 8;
  __m512i block;
  explicit Numbers(const std::byte* from) : block(_mm512_loadu_si512(from)) {}
  __m512 get(int v) const {
    return BlockLanes::e2m1_numbers(_mm512_srli_epi32(block, static_cast<unsigned>(4 * v)));
  }
};

template <>
struct Numbers<WeightFormat::int8> {
  static constexpr int kVectors = 4;
  __m512i block;  // minus 128
  explicit Numbers(const std::byte* from)
      : block(_mm512_xor_si512(_mm512_loadu_si512(from), _mm512_set1_epi8(-128))) {}
  __m512 get(int v) const {
    const __m512i top = _mm512_slli_epi32(block, static_cast<unsigned>(24 - 8 * v));
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(top, 24));
  }
};

// See fp8_numbers.
template <>
struct Numbers<WeightFormat::fp8> {
  static constexpr int kVectors = 4;
  static constexpr float kFactor = 256;  // to be multiplied by
  __m256i halves[2];                     // of threads' bytes
  explicit Numbers(const std::byte* from) {
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    const __m512i block = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(from));
    halves[0] = _mm512_castsi512_si256(block);
    halves[1] = _mm512_extracti64x4_epi64(block, 1);
  }
  __m512 get(int v) const {
    const __m256i words = halves[v / 2];
    return BlockLanes::fp8_numbers(v % 2 == 0 ? _mm256_slli_epi16(words, 8) : words);
  }
};

// The dot products of a block of integers with one of quantized activations: the dword sums.
template <WeightFormat kFormat>
struct Integers;

template <>
struct Integers<WeightFormat::int4> {
  static constexpr int kZero = 8;  // left to be subtracted from each
  __m512i low, high;
  explicit Integers(const std::byte* from) {
    const __m512i block = _mm512_loadu_si512(from), mask = _mm512_set1_epi8(15);
    low = _mm512_and_si512(block, mask);
    high = _mm512_and_si512(_mm512_srli_epi16(block, 4), mask);
  }
  __m512i dot(const std::int8_t* x) const {
    const __m512i words = _mm512_add_epi16(_mm512_maddubs_epi16(low, _mm512_load_si512(x)),
                                           _mm512_maddubs_epi16(high, _mm512_load_si512(x + 64)));
    return _mm512_madd_epi16(words, _mm512_set1_epi16(1));
  }
};

// A sum of two 8-bit terms fits 16 bits only if one factor is at most 128 in magnitude, not 255.
template <>
struct Integers<WeightFormat::int8> {
  static constexpr int kZero = 0;
  __m512i magnitude;
  __mmask64 negative;
  explicit Integers(const std::byte* from) {
    const __m512i block = _mm512_xor_si512(_mm512_loadu_si512(from), _mm512_set1_epi8(-128));
    magnitude = _mm512_abs_epi8(block);
    negative = _mm512_movepi8_mask(block);
  }
  __m512i dot(const std::int8_t* x) const {
    const __m512i same = _mm512_load_si512(x);
    const __m512i other = _mm512_mask_sub_epi8(same, negative, _mm512_setzero_si512(), same);
    return _mm512_madd_epi16(_mm512_maddubs_epi16(magnitude, other), _mm512_set1_epi16(1));
  }
};

}  // namespace
}  // namespace nvllm::kernels::cpu
