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
  const std::int64_t rows = args.out.shape[0], columns = args.out.shape[1];
  const auto check_rows = [&](const TensorView& tensor, const char* name) {
    check.require(tensor, name, args.out.dtype, {rows, columns});
    if (rows * columns == 0) return;
    TensorView row = tensor;
    row.shape[0] = 1;
    check.require_dense(row, name);
    if (rows > 1 && tensor.stride[0] < columns) {
      fail("scaled_sum: ", name, " is ", tensor.describe(), " with rows ", tensor.stride[0],
           " elements apart; they overlap");
    }
  };
  check_rows(args.out, "out");
  check_rows(args.a, "a");
  if (args.b.data != nullptr) check_rows(args.b, "b");
  if (args.factor.data != nullptr) check.require_dense(args.factor, "factor", args.out.dtype, {1});
}

void scaled_sum(const ScaledSum& args, Stream& stream) {
  check_scaled_sum(args);
  if (args.out.elements() == 0) return;
  NVLLM_ON_BACKEND(stream, scaled_sum(args, stream));
}

// On the CPU, eight elements at a time.
namespace cpu {
namespace {

// A tensor whose rows may lie apart.
template <typename T>
struct Rows {
  T* data;
  std::int64_t stride;

  explicit Rows(const TensorView& tensor) : data(tensor.as<T>()), stride(tensor.stride[0]) {}
  T* row(std::int64_t number) const { return data + number * stride; }
};

template <typename T>
struct SumJob {
  Rows<T> out, a, b;  // b.data == nullptr: zeros
  std::int64_t columns;
  float scale;
  const T* factor;  // nullptr: 1

  void operator()(std::int64_t begin, std::int64_t end) const {
    const __m256 by = _mm256_set1_ps(factor == nullptr ? scale : scale * to_float(*factor));
    for (std::int64_t row = begin; row < end; ++row) {
      T* const to = out.row(row);
      const T* const x = a.row(row);
      const T* const y = b.data == nullptr ? nullptr : b.row(row);
      std::int64_t i = 0;
      for (; i + kLanes <= columns; i += kLanes) {
        const __m256 sum = y == nullptr ? load8(x + i) : _mm256_add_ps(load8(x + i), load8(y + i));
        store8(to + i, _mm256_mul_ps(sum, by));
      }
      const std::int64_t left = columns - i;
      if (left == 0) continue;
      __m256 sum = load_some(x + i, left);
      if (y != nullptr) sum = _mm256_add_ps(sum, load_some(y + i, left));
      store_some(to + i, _mm256_mul_ps(sum, by), left);
    }
  }
};

}  // namespace

void scaled_sum(const ScaledSum& args, Stream& stream) {
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    const std::int64_t columns = args.out.shape[1];
    submit_rows(stream, args.out.shape[0], 3 * columns * sizeof(T),
                SumJob<T>{Rows<T>(args.out), Rows<T>(args.a), Rows<T>(args.b), columns, args.scale,
                          args.factor.as<T>()});
  });
}

}  // namespace cpu
}  // namespace nvllm::kernels
