#include "kernels/pointwise/scaled_sum.h"

#include "base/error.h"
#include "kernels/common/arguments.h"
#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"
#include "kernels/pointwise/backends.h"

namespace nvllm::kernels {

void check_scaled_sum(const ScaledSum& args) {
  constexpr Arguments check("scaled_sum");
  check.require_floats(args.out, "out", 2, "[rows, columns]");
  check.require_dense(args.out, "out");
  const std::int64_t rows = args.out.shape[0], columns = args.out.shape[1];
  check.require_dense(args.a, "a", args.out.dtype, {rows, columns});
  if (args.b.data != nullptr) check.require_dense(args.b, "b", args.out.dtype, {rows, columns});
  if (args.factor.data != nullptr) check.require_dense(args.factor, "factor", args.out.dtype, {1});
}

void scaled_sum(const ScaledSum& args, Stream& stream) {
  check_scaled_sum(args);
  if (args.out.elements() == 0) return;
  if (stream.kind() != DeviceKind::cpu) {
    fail("scaled_sum: runs on CPUs only so far; pass --device cpu");
  }
  cpu::scaled_sum(args, stream);
}

// On the CPU, eight elements at a time.
namespace cpu {
namespace {

template <typename T>
struct SumJob {
  T* out;
  const T* a;
  const T* b;  // nullptr: zeros
  float scale;
  const T* factor;  // nullptr: 1
  std::int64_t columns;

  void operator()(std::int64_t begin, std::int64_t end) const {
    const __m256 by = _mm256_set1_ps(factor == nullptr ? scale : scale * to_float(*factor));
    std::int64_t i = begin * columns;
    for (; i + kLanes <= end * columns; i += kLanes) {
      const __m256 sum = b == nullptr ? load8(a + i) : _mm256_add_ps(load8(a + i), load8(b + i));
      store8(out + i, _mm256_mul_ps(sum, by));
    }
    const std::int64_t left = end * columns - i;
    if (left == 0) return;
    __m256 sum = load_some(a + i, left);
    if (b != nullptr) sum = _mm256_add_ps(sum, load_some(b + i, left));
    store_some(out + i, _mm256_mul_ps(sum, by), left);
  }
};

}  // namespace

void scaled_sum(const ScaledSum& args, Stream& stream) {
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    const std::int64_t columns = args.out.shape[1];
    submit_rows(stream, args.out.shape[0], 3 * columns * sizeof(T),
                SumJob<T>{args.out.as<T>(), args.a.as<T>(), args.b.as<T>(), args.scale,
                          args.factor.as<T>(), columns});
  });
}

}  // namespace cpu
}  // namespace nvllm::kernels
