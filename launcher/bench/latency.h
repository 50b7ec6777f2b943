// bench latency: how long prompts and decode steps of one batch take.
#pragma once

#include <cstdint>

#include "launcher/bench/load_generator.h"
#include "launcher/bench/python_random.h"
#include "launcher/bench/summary.h"
#include "launcher/bench/throughput.h"
#include "runtime/engine/engine_client.h"
#include "runtime/options.h"

namespace nvllm::launcher {

struct LatencyPlan {
  std::int64_t batch = 1;
  std::int64_t prompt_tokens = 1024;
  std::int64_t steps = 256;        // decode steps that are measured
  std::int64_t warmup_steps = 16;  // of a batch of other prompts; 0: there is none
  std::int64_t vocabulary = 0;
  std::int64_t max_model_len = 0;  // no sequence grows longer
};

struct LatencyResult {
  LatencyPlan plan;
  double prompts_s = 0;   // from the first request until every sequence has its first token
  Summary first_token_s;  // of each sequence
  double steps = 0;       // steps of the measured stretch
  double seconds = 0;     // that these took
  Summary step_s;
  double rows = 0;     // sequences that gave a token, of a step
  double context = 0;  // tokens that a row saw, on average
  std::int64_t cached_tokens = 0;
  EngineWork work;  // of the measured stretch

  double mean_step_s() const { return seconds / steps; }
};

// Tokens that each sequence needs room for: those that are measured, and what the first sequences give
// while the last prompts are still computed.
std::int64_t output_tokens_of(const LatencyPlan& plan, const runtime::EngineOptions& options);

// Every prompt is drawn anew.
LatencyResult measure_latency(LoadGenerator& load, runtime::EngineClient& client,
                              const LatencyPlan& plan, const runtime::EngineOptions& options,
                              PythonRandom& random);

}  // namespace nvllm::launcher
