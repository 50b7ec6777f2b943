#include "kernels/pointwise/rmsnorm.h"

#include <cmath>

#include "base/error.h"
#include "kernels/common/arguments.h"
#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"
#include "kernels/pointwise/backends.h"

namespace nvllm::kernels {

void check_rms_norm(const RmsNorm& args) {
  constexpr Arguments check("rms_norm");
  const TensorView& x = args.x;
  check.require_floats(x, "x", 2, "[rows, columns]");
  check.require_dense(x, "x");
  const std::int64_t rows = x.shape[0], columns = x.shape[1];
  if (columns < 1 || columns > kRmsNormMaxColumns) {
    fail("rms_norm: x is ", x.describe(), "; it must have 1 to ", kRmsNormMaxColumns, " columns");
  }
  check.require_dense(args.out, "out", x.dtype, {rows, columns});
  check.require_dense(args.weight, "weight", x.dtype, {columns});
  if (args.residual.data == nullptr) return;
  check.require_dense(args.residual, "residual", x.dtype, {rows, columns});
}

void rms_norm(const RmsNorm& args, Stream& stream) {
  check_rms_norm(args);
  if (args.x.shape[0] == 0) return;
  NVLLM_ON_BACKEND(stream, rms_norm(args, stream));
}

// RMSNorm on the CPU: two passes over a row, the second of which finds it in the cache.
namespace cpu {
namespace {

// Sums that run side by side, to hide the latency of an addition.
constexpr int kSums = 4;
constexpr int kStep = kSums * kLanes;

// Adds x to residual where there is one. Returns the sum of the row's squares.
template <bool kResidual, typename T>
float sum_of_squares(const T* x, T* residual, std::int64_t columns) {
  __m256 sums[kSums] = {};
  std::int64_t i = 0;
  const auto take8 = [&](std::int64_t at, __m256& sum) {
    __m256 value = load8(x + at);
    if constexpr (kResidual) {
      store8(residual + at, _mm256_add_ps(load8(residual + at), value));
      value = load8(residual + at);  // as rounded
    }
    sum = _mm256_fmadd_ps(value, value, sum);
  };
  for (; i + kStep <= columns; i += kStep) {
    for (int s = 0; s < kSums; ++s) take8(i + s * kLanes, sums[s]);
  }
  for (; i + kLanes <= columns; i += kLanes) take8(i, sums[0]);
  float sum = sum8(_mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3])));
  for (; i < columns; ++i) {
    float value = to_float(x[i]);
    if constexpr (kResidual) {
      residual[i] = from_float<T>(to_float(residual[i]) + value);
      value = to_float(residual[i]);
    }
    sum += value * value;
  }
  return sum;
}

template <typename T>
void scale_row(T* out, const T* row, const T* weight, float weight_offset, float scale,
               std::int64_t columns) {
  const __m256 scales = _mm256_set1_ps(scale), offsets = _mm256_set1_ps(weight_offset);
  std::int64_t i = 0;
  for (; i + kLanes <= columns; i += kLanes) {
    const __m256 factors = _mm256_add_ps(offsets, load8(weight + i));
    store8(out + i, _mm256_mul_ps(_mm256_mul_ps(load8(row + i), scales), factors));
  }
  for (; i < columns; ++i) {
    out[i] = from_float<T>(to_float(row[i]) * scale * (weight_offset + to_float(weight[i])));
  }
}

}  // namespace

void rms_norm(const RmsNorm& args, Stream& stream) {
  with_element_type(args.x.dtype, [&]<typename T>(T) {
    const std::int64_t tensors = args.residual.data != nullptr ? 4 : 2, columns = args.x.shape[1];
    // Not the whole arguments: what a job captures should fit into the stream's queue.
    const auto norm_rows = [out = args.out.as<T>(), x = args.x.as<T>(),
                            residual = args.residual.as<T>(), weight = args.weight.as<T>(), columns,
                            epsilon = args.epsilon,
                            offset = args.weight_offset](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const T* row = x + r * columns;
        float sum = 0;
        if (residual != nullptr) {
          sum = sum_of_squares<true>(row, residual + r * columns, columns);
          row = residual + r * columns;
        } else {
          sum = sum_of_squares<false, T>(row, nullptr, columns);
        }
        const float mean = sum / static_cast<float>(columns);
        scale_row(out + r * columns, row, weight, offset, 1.0f / std::sqrt(mean + epsilon),
                  columns);
      }
    };
    submit_rows(stream, args.x.shape[0], tensors * columns * sizeof(T), norm_rows);
  });
}

}  // namespace cpu
}  // namespace nvllm::kernels
