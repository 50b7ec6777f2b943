// Dot loops of fp8 weights with AVX512-VBMI, whose permutations of bytes look up both bytes of a
// weight as a bfloat16.
#include "kernels/gemm/cpu/quantized_lanes_avx512.h"
// Behind the lanes.
#include "kernels/gemm/cpu/quantized_dot.h"

namespace nvllm::kernels::cpu {
namespace {

// The upper or lower bytes of fp8's magnitudes as bfloat16, by their bits.
struct alignas(64) Table {
  std::uint8_t bytes[128];

  constexpr explicit Table(int shift) : bytes() {
    for (int magnitude = 0; magnitude < 128; ++magnitude)
      bytes[magnitude] = static_cast<std::uint8_t>(bits_of(magnitude) >> shift & 255);
  }
  static constexpr int bits_of(int magnitude) {
    const int exponent = magnitude >> 3, mantissa = magnitude & 7;
    if (magnitude == 127) return 0x7fc0;  // NaN
    if (exponent > 0) return (exponent + 120) << 7 | mantissa << 4;
    if (mantissa == 0) return 0;
    // A multiple of 2^-9 that is none of a power of two's eighths.
    const int top = mantissa >= 4 ? 2 : mantissa >= 2 ? 1 : 0;
    return (top + 118) << 7 | (mantissa << (7 - top) & 127);
  }
};
constexpr Table kUpper(8), kLower(0);

// As Numbers.
struct LookedUp {
  static constexpr int kVectors = 4;
  static constexpr float kFactor = 1;
  __m512i halves[2];  // of pairs of bfloat16

  explicit LookedUp(const std::byte* from) {
    const __m512i block = _mm512_loadu_si512(from);
    const __m512i sign = _mm512_and_si512(block, _mm512_set1_epi8(-128));
    const __m512i upper = _mm512_or_si512(look_up(kUpper, block), sign);
    const __m512i lower = look_up(kLower, block);
    halves[0] = _mm512_unpacklo_epi8(lower, upper);
    halves[1] = _mm512_unpackhi_epi8(lower, upper);
  }
  __m512 get(int v) const {
    const __m512 pairs = _mm512_castsi512_ps(halves[v / 2]);
    return v % 2 == 0 ? Lanes::first_of(pairs) : Lanes::second_of(pairs);
  }

 private:
  static __m512i look_up(const Table& table, __m512i magnitudes) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(table.bytes), magnitudes,
                                    _mm512_load_si512(table.bytes + 64));
  }
};

}  // namespace

const DotKernels& quantized_dots_avx512_vbmi() {
  return kDots<QuantizedDot<FloatTerms<WeightFormat::fp8, LookedUp>>>;
}

}  // namespace nvllm::kernels::cpu
