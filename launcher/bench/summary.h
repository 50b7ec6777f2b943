// Summary: many samples in a few numbers.
#pragma once

#include <vector>

namespace nvllm::launcher {

struct Summary {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, most = 0;
};

// All zero without samples. A quantile is the sample that so many of them do not exceed.
Summary summary_of(std::vector<double> samples);

}  // namespace nvllm::launcher
