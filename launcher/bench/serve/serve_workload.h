// The requests that a load generator sends, and their arrival times.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "launcher/bench/workload.h"
#include "launcher/cli/options.h"
#include "runtime/request.h"

namespace nvllm::launcher {

// Inter-arrival times: those of a Poisson process, or with a burstiness other than 1 gamma
// distributed with that shape, as in vLLM. The same seed gives the same times.
class Arrivals {
 public:
  // rate: requests per second; infinity: all times are zero.
  Arrivals(double rate, double burstiness, std::uint64_t seed);
  double next_gap_s();

 private:
  double rate_, burstiness_;
  std::mt19937_64 random_;
  std::gamma_distribution<double> gamma_;
};

// A stream of requests. The first `sequences` are those of make_workload(); later ones use further
// seeds, so that no prompt repeats.
class WorkloadStream {
 public:
  explicit WorkloadStream(const WorkloadOptions& options) : options_(options) {}
  const runtime::Request& next();

 private:
  WorkloadOptions options_;
  Workload block_;
  std::size_t at_ = 0;
};

// Writes request bodies: for /v1/completions with the prompt's ids, for /v1/chat/completions with
// one message of as many common words.
class BodyWriter {
 public:
  BodyWriter(const BenchServeOptions& options, const std::string& model);
  std::string body(const runtime::Request& request) const;

 private:
  bool chat_;
  std::string beginning_;  // start of every body: '{"model": ..., '
};

}  // namespace nvllm::launcher
