// Formats of dot products and blocks (gemm_dot.h, gemm_blocks.h) for bfloat16 with AVX512-BF16.
#pragma once

#include "kernels/gemm/cpu/quantized_lanes_avx512.h"
// Include after the lanes.
#include "kernels/gemm/cpu/gemm_lane_blocks.h"
#include "kernels/gemm/cpu/quantized_blocks.h"

namespace nvllm::kernels::cpu {
namespace {

// sum + first term + second term of each pair of lanes. Subnormal operands and results count as
// zero.
inline __m512 multiply_add_pairs(__m512 a, __m512 b, __m512 sum) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

struct DotOfBf16 {
  using Element = Bf16;
  using Weights = __m512;
  static constexpr int kStep = 32, kTerms = 1;

  static Weights load(const Bf16* from) { return Lanes::load_pairs(from); }
  static Weights load_part(const Bf16* from, std::int64_t count) {
    return Lanes::load_pairs_part(from, count);
  }
  static __m512 term(const Weights& weights, int) { return weights; }
  static __m512 multiply_add(__m512 weight, __m512 x, __m512 sum) {
    return multiply_add_pairs(weight, x, sum);
  }
};

struct BlocksOfBf16 {
  using Element = Bf16;
  static constexpr int kPerStep = 2;
  static __m512 load(const Bf16* from) { return Lanes::load_pairs(from); }
  static __m512 load_part(const Bf16* from, std::int64_t count) {
    return Lanes::load_pairs_part(from, count);
  }
  static __m512 multiply_add(__m512 weight, __m512 x, __m512 sum) {
    return multiply_add_pairs(weight, x, sum);
  }
};

}  // namespace
}  // namespace nvllm::kernels::cpu
