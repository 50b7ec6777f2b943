// Lanes: eight floats at a time (AVX2, FMA, F16C), from and to the element types, rounding exactly
// as device/dtype.h does.
//
// In an unnamed namespace, like everything that is compiled once per instruction set: the linker
// must never merge one file's code with another's.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/common/cpu/vector.h"

namespace nvllm::kernels::cpu {
namespace {

struct Lanes {
  static constexpr int kCount = 8;
  static constexpr int kAccumulators = 12;  // fit the registers in addition to operands
  using Floats = __m256;

  static Floats zero() { return _mm256_setzero_ps(); }
  static Floats all(float value) { return _mm256_set1_ps(value); }
  static Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }

  template <typename T>
  static Floats load(const T* from) {
    return load8(from);
  }
  // The first `count` elements, 1 to kCount; the rest are zeros.
  template <typename T>
  static Floats load_part(const T* from, std::int64_t count) {
    if (count == kCount) return load8(from);
    T padded[kCount] = {};
    std::memcpy(padded, from, count * sizeof(T));
    return load8(padded);
  }
  template <typename T>
  static void store_part(T* to, Floats value, std::int64_t count) {
    if (count == kCount) return store8(to, value);
    T padded[kCount];
    store8(padded, value);
    std::memcpy(to, padded, count * sizeof(T));
  }
  template <typename T>
  static void store(T* to, Floats value) {
    store8(to, value);
  }
  static float sum(Floats value) { return sum8(value); }

  // Pairs of bfloat16: the first ones and the second ones, as floats.
  static Floats load_pairs(const Bf16* from) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
  }
  static Floats load_pairs_part(const Bf16* from, std::int64_t count) {
    Bf16 padded[2 * kCount] = {};
    std::memcpy(padded, from, count * sizeof(Bf16));
    return load_pairs(padded);
  }
  static Floats first_of(Floats pairs) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16));
  }
  static Floats second_of(Floats pairs) {
    return _mm256_and_ps(pairs, _mm256_castsi256_ps(_mm256_set1_epi32(-65536)));
  }

  // Lane j of value i becomes lane i of value j.
  static void transpose(Floats (&values)[kCount]) {
    Floats a[kCount], b[kCount];
    for (int i = 0; i < kCount; i += 2) {
      a[i] = _mm256_unpacklo_ps(values[i], values[i + 1]);
      a[i + 1] = _mm256_unpackhi_ps(values[i], values[i + 1]);
    }
    for (int i = 0; i < kCount; i += 4) {
      b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
      b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
      b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
      b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      values[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
      values[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
  }
};

}  // namespace
}  // namespace nvllm::kernels::cpu
