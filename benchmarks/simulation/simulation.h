// simulate(): event-driven simulation of traffic through a router to replicas. It does not depend
// on clocks or threads: the same options give the same results.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/simulation/replica.h"
#include "benchmarks/simulation/router.h"
#include "benchmarks/simulation/traffic.h"
#include "launcher/bench/summary.h"

namespace nvllm::simulation {

struct Simulation {
  EngineModel engine;  // of each replica
  RouterOptions router;
  double front_end_s = 0;  // from the client to the engine
  double warmup_s = 0;     // requests sent earlier are not measured
};

// Times and token counts of one request.
struct RequestRecord {
  double sent = 0, first_token = 0, last_token = 0;  // s
  std::int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0, preemptions = 0;
  std::size_t replica = 0;
};

struct ReplicaRecord {
  std::int64_t requests = 0;
  double busy_s = 0;
};

struct SimulationResult {
  std::vector<RequestRecord> requests;  // all requests, by number
  std::vector<ReplicaRecord> replicas;
  StepWork work;                     // sum over all replicas
  StepWork work_until_first_tokens;  // the same, until every request had its first token
  double first_tokens_s = 0;         // the time when that was
  // From the end of the warm-up until the last request is sent that is not a follow-up: duration
  // and generated tokens. Afterwards ever fewer requests are in flight.
  double warmup_s = 0, steady_s = 0;
  std::int64_t steady_tokens = 0;
};

SimulationResult simulate(const Simulation& simulation, Traffic& traffic);

// Statistics of the measured requests. A request's TPOT is the mean time of its tokens after the
// first.
struct SimulationSummary {
  std::int64_t requests = 0, prompt_tokens = 0, cached_tokens = 0, output_tokens = 0,
               preemptions = 0;
  double duration_s = 0;  // from the first request sent to the last token
  launcher::Summary ttft_s, tpot_s, e2el_s;
  // Maximum over the replicas, divided by the mean.
  double requests_spread = 0, busy_spread = 0;
  double mean_busy = 0;  // share of the time until the last token
};

SimulationSummary summary_of(const SimulationResult& result);

}  // namespace nvllm::simulation
