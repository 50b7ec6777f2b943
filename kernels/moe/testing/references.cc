#include "kernels/moe/testing/references.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/common/arguments.h"

namespace nvllm::kernels {

// The logits must not contain a NaN.
void route_reference(const Route& args) {
  check_route(args);
  const std::int64_t rows = args.weights.shape[0], k = args.weights.shape[1],
                     experts = args.logits.shape[1];
  std::vector<std::vector<std::int64_t>> chosen(static_cast<std::size_t>(rows));
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* const logits = args.logits.as<float>() + row * experts;
    std::vector<std::int64_t>& order = chosen[static_cast<std::size_t>(row)];
    order.resize(static_cast<std::size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](auto a, auto b) { return logits[a] > logits[b]; });
    double all = 0, some = 0;
    for (std::int64_t j = 0; j < experts; ++j) {
      const double power = std::exp(double{logits[order[j]]} - double{logits[order[0]]});
      all += power;
      if (j < k) some += power;
    }
    order.resize(static_cast<std::size_t>(k));
    for (std::int64_t j = 0; j < k; ++j) {
      const double power = std::exp(double{logits[order[j]]} - double{logits[order[0]]});
      const float scale = args.scales.data == nullptr ? 1 : args.scales.as<float>()[order[j]];
      args.weights.as<float>()[row * k + j] =
          static_cast<float>(power / (args.renormalize ? some : all) * scale);
    }
  }
  std::int32_t entry = 0;
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    args.expert_start.as<std::int32_t>()[expert] = entry;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t j = 0; j < k; ++j) {
        if (chosen[static_cast<std::size_t>(row)][static_cast<std::size_t>(j)] != expert) continue;
        args.source_rows.as<std::int32_t>()[entry] = static_cast<std::int32_t>(row);
        args.entries.as<std::int32_t>()[row * k + j] = entry++;
      }
    }
  }
  args.expert_start.as<std::int32_t>()[experts] = entry;
}

void combine_experts_reference(const CombineExperts& args) {
  check_combine_experts(args);
  with_element_type(args.out.dtype, [&]<typename T>(T) {
    const std::int64_t rows = args.out.shape[0], columns = args.out.shape[1],
                       k = args.weights.shape[1];
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t column = 0; column < columns; ++column) {
        double sum = 0;
        for (std::int64_t j = 0; j < k; ++j) {
          const std::int64_t entry = args.entries.as<std::int32_t>()[row * k + j];
          if (args.own_start.data != nullptr) {
            const auto* const own = args.own_start.as<std::int32_t>();
            if (entry < own[0] || entry >= own[args.own_start.elements() - 1]) continue;
          }
          sum += double{args.weights.as<float>()[row * k + j]} *
                 to_float(args.experts.as<T>()[entry * columns + column]);
        }
        const std::int64_t at = row * columns + column;
        if (args.shared.data != nullptr) {
          const double gate = args.shared_gate.as<float>()[row];
          sum += to_float(args.shared.as<T>()[at]) / (1 + std::exp(-gate));
        }
        T result = from_float<T>(static_cast<float>(sum));
        if (args.residual.data != nullptr) {
          result = from_float<T>(to_float(args.residual.as<T>()[at]) + to_float(result));
        }
        args.out.as<T>()[at] = result;
      }
    }
  });
}

}  // namespace nvllm::kernels
