// Weighted sums of experts' rows on the CPU, eight columns at a time.
#include "kernels/moe/combine_experts.h"

#include <algorithm>
#include <cmath>

#include "kernels/common/arguments.h"
#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"
#include "kernels/moe/backends.h"

namespace nvllm::kernels::cpu {
namespace {

// Rounded to T.
template <typename T>
__m256 rounded(__m256 values) {
  T elements[kLanes];
  store8(elements, values);
  return load8(elements);
}

template <typename T, typename Out>
struct CombineJob {
  Out* out;
  const T* experts;
  const T* residual;
  const T* shared;  // nullptr: none
  const float* shared_gate;
  const float* weights;
  const std::int32_t* entries;
  const std::int32_t* own_start;  // nullptr: all entries are own
  std::int64_t own_experts;
  std::int64_t columns, k;

  void operator()(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t column = 0; column < columns; column += kLanes) {
        combine(row, column, std::min<std::int64_t>(columns - column, kLanes));
      }
    }
  }

  bool is_own(std::int32_t entry) const {
    return own_start == nullptr || (entry >= own_start[0] && entry < own_start[own_experts]);
  }

  void combine(std::int64_t row, std::int64_t column, std::int64_t count) const {
    const auto load = [&](const T* from) {
      return count == kLanes ? load8(from) : load_some(from, count);
    };
    __m256 sum = _mm256_setzero_ps();
    for (std::int64_t j = 0; j < k; ++j) {
      const std::int32_t entry = entries[row * k + j];
      if (!is_own(entry)) continue;
      const __m256 part = load(experts + entry * columns + column);
      sum = _mm256_fmadd_ps(_mm256_set1_ps(weights[row * k + j]), part, sum);
    }
    const std::int64_t at = row * columns + column;
    if (shared != nullptr) {
      const float weight = 1 / (1 + std::exp(-shared_gate[row]));
      sum = _mm256_fmadd_ps(_mm256_set1_ps(weight), load(shared + at), sum);
    }
    if (residual != nullptr) sum = _mm256_add_ps(load(residual + at), rounded<T>(sum));
    if (count == kLanes) {
      store8(out + at, sum);
    } else {
      store_some(out + at, sum, count);
    }
  }
};

template <typename T, typename Out>
void submit_job(const CombineExperts& args, Stream& stream) {
  const std::int64_t columns = args.out.shape[1], k = args.weights.shape[1];
  const CombineJob<T, Out> job{.out = args.out.as<Out>(),
                               .experts = args.experts.as<const T>(),
                               .residual = args.residual.as<const T>(),
                               .shared = args.shared.as<const T>(),
                               .shared_gate = args.shared_gate.as<const float>(),
                               .weights = args.weights.as<const float>(),
                               .entries = args.entries.as<const std::int32_t>(),
                               .own_start = args.own_start.as<const std::int32_t>(),
                               .own_experts = args.own_start.elements() - 1,
                               .columns = columns,
                               .k = k};
  const auto row_bytes = (k + 2) * columns * static_cast<std::int64_t>(sizeof(T));
  submit_rows(stream, args.out.shape[0], row_bytes, job);
}

}  // namespace

void combine_experts(const CombineExperts& args, Stream& stream) {
  with_element_type(args.experts.dtype, [&]<typename T>(T) {
    if (args.out.dtype == args.experts.dtype) {
      submit_job<T, T>(args, stream);
    } else {
      submit_job<T, float>(args, stream);
    }
  });
}

}  // namespace nvllm::kernels::cpu
