// The measurements of bench throughput and bench latency.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "launcher/bench/floor.h"
#include "launcher/bench/load_generator.h"
#include "launcher/bench/workload.h"
#include "runtime/engine/engine_client.h"
#include "runtime/engine/engine_messages.h"
#include "runtime/options.h"

namespace nvllm::launcher {

// The engine's work between two readings of its statistics.
struct EngineWork {
  std::uint64_t steps = 0, rows = 0;
  std::uint64_t generated_tokens = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t kv_bytes_to_host = 0, kv_bytes_to_device = 0, kv_bytes_by_host = 0;
  double device_busy_s = 0, host_s = 0, waiting_s = 0;
  double step_message_bytes = 0;  // per step
};
EngineWork work_between(const runtime::EngineStatistics& before,
                        const runtime::EngineStatistics& after);

// bench throughput: the total time of many concurrent requests.
struct ThroughputResult {
  double warmup_s = 0;
  std::int64_t warmup_prompts = 0;

  double seconds = 0;  // from the first request to the last token
  std::int64_t prompts = 0, prompt_tokens = 0, output_tokens = 0;
  std::int64_t cached_tokens = 0;  // prompt tokens found in the prefix cache
  Summary ttft_s = {}, itl_s = {}, request_s = {};
  EngineWork work = {};
  std::optional<std::uint64_t> logprobs_hash = {};  // if the plan requests it
};

// An xxHash64 of all requests in order of submission: for each, the number of generated tokens, and
// each token's id and the bits of its log-probability. It depends on timing and batching only if
// these bits do.
std::uint64_t hash_of_logprobs(std::span<const RequestRecord> records);
std::string hex_digits(std::uint64_t hash);  // 16

struct ThroughputPlan {
  Workload workload;
  std::int64_t at_once = 0;
  std::int64_t warmup = 0;      // short prompts that run first
  std::int64_t vocabulary = 0;  // for their random ids
  bool logprobs_hash = false;   // its requests return log-probabilities
};
ThroughputResult measure_throughput(LoadGenerator& load, runtime::EngineClient& client,
                                    const ThroughputPlan& plan);

// The warm-up before measurements: short prompts without common prefixes, whose answers end one
// after the other, so that steps of all batch sizes have run once.
Workload warmup_workload(std::int64_t prompts, std::int64_t vocabulary);

// The floor of a whole workload (floor.h).
double floor_of(const Workload& workload, const ModelCost& cost, const DeviceSpeed& speed,
                std::int64_t at_once);

// bench latency: the times of prefill and decode steps of one batch.
struct LatencyPlan {
  std::int64_t batch = 1;
  std::int64_t prompt_tokens = 1024;
  std::int64_t steps = 256;        // number of decode steps measured
  std::int64_t warmup_steps = 16;  // of a batch of other prompts; 0: none
  std::int64_t vocabulary = 0;
  std::int64_t max_model_len = 0;
};

struct LatencyResult {
  LatencyPlan plan;
  double prefill_s = 0;  // from the first request until every sequence has its first token
  Summary ttft_s;        // of each sequence
  double steps = 0;      // number of decode steps measured
  double seconds = 0;    // their total time
  Summary step_s;
  double rows = 0;     // mean number of sequences in a step
  double context = 0;  // mean context of a sequence in a step
  std::int64_t cached_tokens = 0;
  EngineWork work;  // of the measured steps

  double mean_step_s() const { return seconds / steps; }
};

// How many tokens each sequence may generate: those measured, and those that the first sequences
// generate while the last prompts are still in prefill.
std::int64_t output_tokens_of(const LatencyPlan& plan, const runtime::EngineOptions& options);

// The floor of its prefill (floor.h).
double prefill_floor(const LatencyResult& result, const ModelCost& cost, const DeviceSpeed& speed);

// Every prompt is a new random one.
LatencyResult measure_latency(LoadGenerator& load, runtime::EngineClient& client,
                              const LatencyPlan& plan, const runtime::EngineOptions& options,
                              PythonRandom& random);

}  // namespace nvllm::launcher
