// The measurements of bench throughput and bench latency; and LoadGenerator, which submits their
// requests to an engine and records when the tokens arrive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/trace.h"
#include "launcher/bench/floor.h"
#include "launcher/bench/summary.h"
#include "launcher/bench/workload.h"
#include "runtime/engine/engine_client.h"
#include "runtime/engine/engine_messages.h"
#include "runtime/options.h"
#include "runtime/request.h"

namespace nvllm::launcher {

// Times of one request at the front end, in now_ns().
struct RequestRecord {
  std::int64_t submitted_ns = 0;
  std::int64_t first_ns = 0;  // first token; 0: none yet
  std::int64_t last_ns = 0;
  std::int64_t tokens = 0;
  // Inter-token latencies (ITL); tokens that arrive together share the time since the previous
  // ones.
  std::vector<float> gaps_s;
  std::vector<runtime::TokenLogprob> logprobs;  // of the tokens, if requested
  std::int32_t cached_tokens = 0, preemptions = 0;
  bool finished = false;

  double first_token_s() const { return static_cast<double>(first_ns - submitted_ns) * 1e-9; }
};

// Used by the launcher's main thread.
class LoadGenerator {
 public:
  // Both must outlive it; trace may be nullptr.
  explicit LoadGenerator(runtime::EngineClient& client, Trace* trace = nullptr)
      : client_(client), trace_(trace) {}

  // Called at each poll with the total number of requests (0: unknown). Must return quickly.
  void on_poll(std::function<void(std::size_t total)> call) { on_poll_ = std::move(call); }

  // Discards the records of earlier requests.
  void clear() { records_.clear(); }
  void submit(const runtime::Request& request);
  // Waits for updates and records them. Throws an Error if a request was rejected.
  void poll();
  // Aborts the requests that still run.
  void abort_all();
  // Submits all requests, at most `at_once` of them in flight, and waits until they have finished.
  void run(std::span<const runtime::Request> requests, std::int64_t at_once);

  std::int64_t unfinished() const { return static_cast<std::int64_t>(client_.unfinished()); }
  // In order of submission.
  const std::vector<RequestRecord>& records() const { return records_; }

 private:
  RequestRecord* record_of(const runtime::Update& update);

  runtime::EngineClient& client_;
  Trace* trace_;
  std::function<void(std::size_t total)> on_poll_;
  std::size_t total_ = 0;  // of run()
  std::uint64_t next_id_ = 1;
  std::vector<RequestRecord> records_;  // the last one has id next_id_ - 1
};

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
