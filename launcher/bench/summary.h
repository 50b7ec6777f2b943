// Summary: statistics of many samples, and how tables show them.
#pragma once

#include <string>
#include <vector>

namespace nvllm::launcher {

struct Summary {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;
};

// All zero without samples. A quantile is a sample: the smallest one that is not below that share
// of them.
Summary summary_of(std::vector<double> samples);

// A row of a table in milliseconds: what they are, then the five figures. A title row to it is
// {"ms", "mean", "p50", "p90", "p99", "max"}.
std::vector<std::string> row_in_ms(const char* what, const Summary& seconds);

}  // namespace nvllm::launcher
