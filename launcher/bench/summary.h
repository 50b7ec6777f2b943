// Summary: statistics of samples, and their form in tables.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

#include "launcher/session/text_table.h"

namespace nvllm::launcher {

struct Summary {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;
};

// All zero without samples. A quantile is the smallest sample that is not below that share of all
// samples.
inline Summary summary_of(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const double count = static_cast<double>(samples.size());
  const auto quantile = [&](double share) {
    const auto rank = static_cast<std::size_t>(std::ceil(share * count));
    return samples[std::max<std::size_t>(rank, 1) - 1];
  };
  return {.mean = std::accumulate(samples.begin(), samples.end(), 0.0) / count,
          .p50 = quantile(0.50),
          .p90 = quantile(0.90),
          .p99 = quantile(0.99),
          .max = samples.back()};
}

// A table row in milliseconds: `what`, then the five statistics. Matching headings: {"ms", "mean",
// "p50", "p90", "p99", "max"}.
inline std::vector<std::string> row_in_ms(const char* what, const Summary& seconds) {
  return {what,
          three_digits(seconds.mean * 1e3),
          three_digits(seconds.p50 * 1e3),
          three_digits(seconds.p90 * 1e3),
          three_digits(seconds.p99 * 1e3),
          three_digits(seconds.max * 1e3)};
}

}  // namespace nvllm::launcher
