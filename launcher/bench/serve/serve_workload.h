// What a load generator sends to a server, and when.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "launcher/bench/workload.h"
#include "launcher/cli/options.h"
#include "runtime/request.h"

namespace nvllm::launcher {

// Gaps between the arrivals of requests: a Poisson process, or with a burstiness other than 1 gaps
// of a gamma distribution with that shape, as vLLM has it. The same seed gives the same gaps.
class Arrivals {
 public:
  // rate: requests per second; infinity: all gaps are zero.
  Arrivals(double rate, double burstiness, std::uint64_t seed);
  double next_gap_s();

 private:
  double rate_, burstiness_;
  std::mt19937_64 random_;
  std::gamma_distribution<double> gamma_;
};

// Requests one after the other. The first `sequences` of them are those of make_workload(); more
// are those of further seeds, so that no prompt comes twice.
class WorkloadStream {
 public:
  explicit WorkloadStream(const WorkloadOptions& options) : options_(options) {}
  const runtime::Request& next();

 private:
  WorkloadOptions options_;
  Workload block_;
  std::size_t at_ = 0;
};

// Writes the bodies of requests: for /v1/completions with the prompt's ids, for
// /v1/chat/completions with one message of as many common words.
class BodyWriter {
 public:
  BodyWriter(const BenchServeOptions& options, const std::string& model);
  std::string body(const runtime::Request& request) const;

 private:
  bool chat_;
  std::string beginning_;  // of every body: '{"model": ..., '
};

}  // namespace nvllm::launcher
