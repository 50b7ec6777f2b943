// simulate(): traffic through a router to replicas, event by event. Nothing in it depends on clocks
// or threads: the same options give the same results.
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
  double front_end_s = 0;  // from the client until the engine has the request
  double warmup_s = 0;     // requests that are sent earlier are not measured
};

// Of one request.
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
  std::vector<RequestRecord> requests;  // by number; all of them
  std::vector<ReplicaRecord> replicas;
  StepWork work;                     // of all replicas
  StepWork work_until_first_tokens;  // the same, until every request had its first token
  double first_tokens_s = 0;         // when that was
  // From the end of the warm-up until the last request is sent that follows no other one: how long
  // that is, and the tokens that came. Afterwards fewer and fewer requests are under way.
  double warmup_s = 0, steady_s = 0;
  std::int64_t steady_tokens = 0;
};

SimulationResult simulate(const Simulation& simulation, Traffic& traffic);

// What is said of the requests that were measured. A request's TPOT is the mean time of its tokens
// but the first.
struct SimulationSummary {
  std::int64_t requests = 0, prompt_tokens = 0, cached_tokens = 0, output_tokens = 0,
               preemptions = 0;
  double duration_s = 0;  // from the first that is sent to the last token
  launcher::Summary ttft_s, tpot_s, e2el_s;
  // The largest of the replicas over their mean.
  double requests_spread = 0, busy_spread = 0;
  double mean_busy = 0;  // share of the time from the beginning to the last token
};

SimulationSummary summary_of(const SimulationResult& result);

}  // namespace nvllm::simulation
