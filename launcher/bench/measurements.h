// bench throughput: many requests at once, how long they take all in all.
#pragma once

#include <cstdint>

#include "launcher/bench/floor.h"
#include "launcher/bench/load_generator.h"
#include "launcher/bench/summary.h"
#include "launcher/bench/workload.h"
#include "runtime/engine_messages.h"

namespace nvllm::launcher {

// What an engine did between two looks at its statistics.
struct EngineWork {
  std::uint64_t steps = 0, rows = 0;
  std::uint64_t generated_tokens = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t kv_bytes_to_host = 0, kv_bytes_to_device = 0, kv_bytes_by_host = 0;
  double device_busy_s = 0, host_s = 0, waiting_s = 0;
  double step_message_bytes = 0;  // of a step
};
EngineWork work_between(const runtime::EngineStatistics& before,
                        const runtime::EngineStatistics& after);

struct ThroughputResult {
  double warmup_s = 0;
  std::int64_t warmup_prompts = 0;

  double seconds = 0;  // from the first request until the last token
  std::int64_t prompts = 0, prompt_tokens = 0, output_tokens = 0;
  std::int64_t cached_tokens = 0;  // of prompts, that were there already
  Summary first_token_s = {}, token_s = {}, request_s = {};
  EngineWork work = {};
};

struct ThroughputPlan {
  Workload workload;
  std::int64_t at_once = 0;
  std::int64_t warmup = 0;      // short prompts that run first
  std::int64_t vocabulary = 0;  // that these are drawn from
};
ThroughputResult measure_throughput(LoadGenerator& load, runtime::EngineClient& client,
                                    const ThroughputPlan& plan);

// What runs before anything is measured: as many short prompts, none of which begins like another, whose
// answers end one after the other, so that steps of all sizes have run once.
Workload warmup_workload(std::int64_t prompts, std::int64_t vocabulary);

double floor_of(const Workload& workload, const ModelCost& cost, const DeviceSpeed& speed,
                std::int64_t at_once);

}  // namespace nvllm::launcher
