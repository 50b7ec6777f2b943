// GEMV loops with AVX512-VNNI, whose instruction multiplies four unsigned weights by four signed
// activations and adds them to a dword.
#include "kernels/gemm/cpu/quantized_lanes_avx512.h"
// Behind the lanes.
#include "kernels/gemm/cpu/quantized_dot.h"

namespace nvllm::kernels::cpu {
namespace {

struct Int4 {
  static constexpr int kZero = 8;
  __m512i low, high;
  explicit Int4(const std::byte* from) {
    const __m512i block = _mm512_loadu_si512(from), mask = _mm512_set1_epi8(15);
    low = _mm512_and_si512(block, mask);
    high = _mm512_and_si512(_mm512_srli_epi16(block, 4), mask);
  }
  __m512i dot(const std::int8_t* x) const {
    const __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), low, _mm512_load_si512(x));
    return _mm512_dpbusd_epi32(sums, high, _mm512_load_si512(x + 64));
  }
};

struct Int8 {
  static constexpr int kZero = 128;
  __m512i block;
  explicit Int8(const std::byte* from) : block(_mm512_loadu_si512(from)) {}
  __m512i dot(const std::int8_t* x) const {
    return _mm512_dpbusd_epi32(_mm512_setzero_si512(), block, _mm512_load_si512(x));
  }
};

}  // namespace

const DotKernels& quantized_dots_avx512_vnni(WeightFormat format) {
  if (format == WeightFormat::int4) {
    return kDots<QuantizedDot<IntegerTerms<WeightFormat::int4, Int4>>>;
  }
  return kDots<QuantizedDot<IntegerTerms<WeightFormat::int8, Int8>>>;
}

}  // namespace nvllm::kernels::cpu
