// Summary: statistics of samples, and their form in tables.
#pragma once

#include <string>
#include <vector>

namespace nvllm::launcher {

struct Summary {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;
};

// All zero without samples. A quantile is the smallest sample that is not below that share of all
// samples.
Summary summary_of(std::vector<double> samples);

// A table row in milliseconds: `what`, then the five statistics. Matching headings: {"ms", "mean",
// "p50", "p90", "p99", "max"}.
std::vector<std::string> row_in_ms(const char* what, const Summary& seconds);

}  // namespace nvllm::launcher
