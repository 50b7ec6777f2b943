#include "launcher/bench/summary.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "launcher/session/text_table.h"

namespace nvllm::launcher {

Summary summary_of(std::vector<double> samples) {
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

std::vector<std::string> row_in_ms(const char* what, const Summary& seconds) {
  return {what,
          three_digits(seconds.mean * 1e3),
          three_digits(seconds.p50 * 1e3),
          three_digits(seconds.p90 * 1e3),
          three_digits(seconds.p99 * 1e3),
          three_digits(seconds.max * 1e3)};
}

}  // namespace nvllm::launcher
