// The report of bench serve: statistics of the requests, as a table and as JSON. Names and meanings
// are those of `vllm bench serve`.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "launcher/bench/serve/serve_load.h"
#include "launcher/bench/summary.h"
#include "launcher/bench/workload.h"
#include "launcher/cli/options.h"

namespace nvllm::launcher {

struct ServeFailure {
  std::int64_t count = 0;
  std::string example;  // the first message
};

struct ServeStatistics {
  double seconds = 0;  // from the first request sent until the last one has ended
  std::int64_t completed = 0;
  std::map<std::string, ServeFailure> failures;                          // by kind
  std::int64_t prompt_tokens = 0, output_tokens = 0, cached_tokens = 0;  // of completed requests
  std::int64_t chunks = 0;
  std::int64_t uncounted = 0;       // completed requests without token counts from the server
  std::int64_t good = 0;            // completed within the limits of --goodput
  std::int64_t max_concurrent = 0;  // requests in flight at the same time
  double max_late_s = 0;            // maximum delay with which the client sent a request
  Summary ttft_s, tpot_s, itl_s, e2el_s;

  std::int64_t failed() const;
  double per_second(std::int64_t count) const {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0;
  }
};

// A request is good if it meets every limit that is set.
ServeStatistics statistics_of(std::span<const ServeRecord> records, const GoodputLimits& limits);

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
