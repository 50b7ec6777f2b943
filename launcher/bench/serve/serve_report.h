// Formats the output of bench serve.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "launcher/bench/serve/serve_load.h"
#include "launcher/bench/serve/serve_record.h"
#include "launcher/bench/serve/serve_statistics.h"
#include "launcher/bench/workload.h"
#include "launcher/cli/options.h"

namespace nvllm::launcher {

struct ServeReport {
  std::string model;
  std::vector<std::string> base_urls;
  BenchServeOptions options;
  WorkloadOptions workload;
  ServePace pace;
  std::int64_t warmup = 0;  // requests
  ServeStatistics statistics;
  double client_cpu_s = 0;  // processor time of this client during the measurement
};

std::string format_table(const ServeReport& report);
// Keys are those of `vllm bench serve --save-result` where it has them.
std::string format_json(const ServeReport& report);

// A line for each request.
std::string format_requests(const ServeReport& report, std::span<const ServeRecord> records);

}  // namespace nvllm::launcher
