// A mixture's operations on the CPU. The router: probabilities and choices row by row, on all
// threads, then a counting sort of all entries by expert. The weighted sums of experts' rows: eight
// columns at a time.
#include "kernels/moe/moe.h"

#include <algorithm>
#include <cmath>

#include "kernels/common/arguments.h"
#include "kernels/common/cpu/rows.h"
#include "kernels/common/cpu/vector.h"
#include "kernels/moe/backends.h"

namespace nvllm::kernels::cpu {
namespace {

// e^(logit - max) of all experts, and their sum, which is NaN if a logit is.
float exponentials(const float* logits, std::int64_t experts, float* powers) {
  const __m256 max = _mm256_set1_ps(max_of(logits, experts));
  std::int64_t i = 0;
  for (; i + kLanes <= experts; i += kLanes) {
    store8(powers + i, exp8(_mm256_sub_ps(load8(logits + i), max)));
  }
  if (i < experts) {
    const __m256 rest = load_some(logits + i, experts - i);
    store_some(powers + i, exp8(_mm256_sub_ps(rest, max)), experts - i);
  }
  float sum = 0;
  for (std::int64_t expert = 0; expert < experts; ++expert) sum += powers[expert];
  return sum;
}

// The k largest, the largest first. Comparisons with NaN are false, so that any k experts are
// chosen among NaN.
void choose(const float* logits, std::int64_t experts, std::int64_t k, std::int32_t* chosen) {
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    std::int64_t place = std::min(expert, k);
    while (place > 0 && logits[expert] > logits[chosen[place - 1]]) --place;
    if (place == k) continue;
    std::copy_backward(chosen + place, chosen + std::min(expert, k - 1),
                       chosen + std::min(expert, k - 1) + 1);
    chosen[place] = static_cast<std::int32_t>(expert);
  }
}

// Leaves the chosen experts' numbers in `entries`.
struct ChooseJob {
  const float* logits;
  float* weights;
  std::int32_t* entries;
  std::int64_t experts, k;
  bool renormalize;
  TensorView scales;

  float scale_of(std::int32_t expert) const {
    if (scales.data == nullptr) return 1;
    return with_element_type(scales.dtype,
                             [&]<typename T>(T) { return to_float(scales.as<T>()[expert]); });
  }

  void operator()(std::int64_t begin, std::int64_t end) const {
    float powers[kMaxExperts];
    for (std::int64_t row = begin; row < end; ++row) {
      std::int32_t* const chosen = entries + row * k;
      const float all = exponentials(logits + row * experts, experts, powers);
      choose(logits + row * experts, experts, k, chosen);
      float sum = 0;
      for (std::int64_t j = 0; j < k; ++j) sum += powers[chosen[j]];
      // NaN of a logit that was not chosen must show, too.
      const float divisor = renormalize && !std::isnan(all) ? sum : all;
      for (std::int64_t j = 0; j < k; ++j) {
        weights[row * k + j] = powers[chosen[j]] / divisor * scale_of(chosen[j]);
      }
    }
  }
};

// Turns the numbers of experts into those of entries.
void sort_by_expert(const Route& args) {
  const std::int64_t rows = args.weights.shape[0], k = args.weights.shape[1],
                     experts = args.logits.shape[1];
  auto* const entries = args.entries.as<std::int32_t>();
  auto* const source_rows = args.source_rows.as<std::int32_t>();
  auto* const start = args.expert_start.as<std::int32_t>();
  std::int32_t next[kMaxExperts] = {};
  for (std::int64_t i = 0; i < rows * k; ++i) ++next[entries[i]];
  start[0] = 0;
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    start[expert + 1] = start[expert] + next[expert];
    next[expert] = start[expert];
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t j = 0; j < k; ++j) {
      std::int32_t& entry = entries[row * k + j];
      entry = next[entry]++;
      source_rows[entry] = static_cast<std::int32_t>(row);
    }
  }
}

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
void submit_combine(const CombineExperts& args, Stream& stream) {
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

void route(const Route& args, Stream& stream) {
  const std::int64_t rows = args.weights.shape[0], experts = args.logits.shape[1];
  const ChooseJob job{.logits = args.logits.as<float>(),
                      .weights = args.weights.as<float>(),
                      .entries = args.entries.as<std::int32_t>(),
                      .experts = experts,
                      .k = args.weights.shape[1],
                      .renormalize = args.renormalize,
                      .scales = args.scales};
  // An exponential and comparisons cost about as much as moving ten elements.
  constexpr std::int64_t kElementCost = 10 * sizeof(float);
  if (rows > 0) submit_rows(stream, rows, experts * kElementCost, job);
  nvllm::cpu::stream(stream).submit([args] { sort_by_expert(args); });
}

void combine_experts(const CombineExperts& args, Stream& stream) {
  with_element_type(args.experts.dtype, [&]<typename T>(T) {
    if (args.out.dtype == args.experts.dtype) {
      submit_combine<T, T>(args, stream);
    } else {
      submit_combine<T, float>(args, stream);
    }
  });
}

}  // namespace nvllm::kernels::cpu
