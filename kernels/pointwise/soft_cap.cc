#include "kernels/pointwise/soft_cap.h"

#include "base/error.h"
#include "kernels/common/arguments.h"
#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"
#include "kernels/pointwise/backends.h"

namespace nvllm::kernels {

void check_soft_cap(const SoftCap& args) {
  constexpr Arguments check("soft_cap");
  check.require_floats(args.x, "x", 2, "[rows, columns]");
  check.require(args.x, "x", DType::f32, {args.x.shape[0], args.x.shape[1]});
  if (args.x.elements() > 0) check.require_memory(args.x, "x");
  if (args.x.stride[1] != 1 || args.x.stride[0] < args.x.shape[1]) {
    fail("soft_cap: x is ", args.x.describe(), "; the elements of a row must be dense");
  }
  if (!(args.cap > 0)) fail("soft_cap: cap is ", args.cap, "; it must be positive");
}

void soft_cap(const SoftCap& args, Stream& stream) {
  check_soft_cap(args);
  if (args.x.elements() == 0) return;
  NVLLM_ON_BACKEND(stream, soft_cap(args, stream));
}

// On the CPU, eight elements at a time.
namespace cpu {
namespace {

// tanh(x) = 1 - 2 / (e^(2x) + 1)
__m256 capped8(__m256 x, float cap) {
  const __m256 one = _mm256_set1_ps(1.0f), two = _mm256_set1_ps(2.0f);
  const __m256 power = exp8(_mm256_mul_ps(x, _mm256_set1_ps(2 / cap)));
  const __m256 rest = _mm256_div_ps(two, _mm256_add_ps(power, one));
  return _mm256_mul_ps(_mm256_set1_ps(cap), _mm256_sub_ps(one, rest));
}

struct CapJob {
  float* x;
  std::int64_t stride, columns;
  float cap;

  void operator()(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t r = begin; r < end; ++r) {
      float* const row = x + r * stride;
      std::int64_t i = 0;
      for (; i + kLanes <= columns; i += kLanes) store8(row + i, capped8(load8(row + i), cap));
      if (i == columns) continue;
      store_some(row + i, capped8(load_some(row + i, columns - i), cap), columns - i);
    }
  }
};

}  // namespace

void soft_cap(const SoftCap& args, Stream& stream) {
  const std::int64_t columns = args.x.shape[1];
  // An exponential costs about as much as moving four elements.
  submit_rows(stream, args.x.shape[0], 6 * columns * static_cast<std::int64_t>(sizeof(float)),
              CapJob{args.x.as<float>(), args.x.stride[0], columns, args.cap});
}

}  // namespace cpu
}  // namespace nvllm::kernels
