// ServerMetrics: the content of /metrics. Names, labels and buckets are vLLM's, so that dashboards
// and alerts made for vLLM work.
//
//   ServerMetrics metrics({.model_name = "smollm2", .max_model_len = 8192, .blocks = 1000});
//   metrics.record_step(prompt_tokens, generated_tokens);   // the engine's thread
//   metrics.record_answer({.times = update.times, ...});
//   metrics.set_scheduler(client.statistics().scheduler);
//   respond(metrics.text(), kPrometheusContentType);        // any thread
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "launcher/serve/prometheus.h"
#include "runtime/engine/engine_messages.h"
#include "runtime/request.h"

namespace nvllm::launcher {

struct ServerMetricsOptions {
  std::string model_name;  // the first of the server's model names
  std::int64_t max_model_len = 0;
  // Properties of the KV cache.
  std::int64_t blocks = 0, block_size = 0, host_blocks = 0;
  bool prefix_caching = true;
};

// A finished answer. Each of a request's n answers is recorded separately.
struct FinishedAnswer {
  runtime::RequestTimes times = {};  // Update::times; 0: not scheduled, or no token
  std::int64_t received_ns = 0;      // when the front end had the request
  std::int64_t finished_ns = 0;      // when the front end had processed the answer
  runtime::FinishReason finish = runtime::FinishReason::none;  // none: it failed with an error
  std::int64_t prompt_tokens = 0, generated_tokens = 0;
  std::int64_t cached_tokens = 0;  // of the prompt
  std::optional<std::int64_t> max_tokens = std::nullopt;
  // Set for the last answer of a request: n, and the tokens of its longest answer.
  std::int64_t n = 0, longest = 0;
};

// Thread-safe, without locks. Counters only increase, even if the engine is restarted and counts
// from 0 again.
class ServerMetrics {
 public:
  explicit ServerMetrics(ServerMetricsOptions options);
  ServerMetrics(const ServerMetrics&) = delete;
  ServerMetrics& operator=(const ServerMetrics&) = delete;

  // A step's results: prompt tokens of requests that got their first token, and all new tokens.
  void record_step(std::int64_t prompt_tokens, std::int64_t generated_tokens);
  // From the request to the first token of an answer.
  void record_first_token(double seconds);
  // Between two updates of an answer.
  void record_inter_token(double seconds);
  void record_answer(const FinishedAnswer& answer);
  // The scheduler's state. Called by one thread, including once after it has become idle.
  void set_scheduler(const runtime::SchedulerStatistics& now);
  // The engine and its requests are gone: nothing is running, waiting or cached.
  void engine_lost();

  std::string text() const;

 private:
  // A counter of an engine that may restart.
  struct EngineCounter {
    void set(std::uint64_t now);

    std::atomic<std::uint64_t> total{0};
    std::uint64_t last = 0;  // the engine's last value
  };

  void write_scheduler(PrometheusText& out) const;
  void write_tokens(PrometheusText& out) const;
  void write_times(PrometheusText& out) const;

  const ServerMetricsOptions options_;

  std::atomic<std::int64_t> running_{0}, waiting_{0};
  std::atomic<double> cache_usage_{0};
  EngineCounter prefix_queries_, prefix_hits_, preemptions_;

  static constexpr std::size_t kFinishReasons = 4;
  std::atomic<std::uint64_t> finished_[kFinishReasons] = {};  // by runtime::FinishReason
  std::atomic<std::uint64_t> prompt_tokens_{0}, cached_tokens_{0}, generated_tokens_{0};
  Histogram step_tokens_;

  Histogram request_prompt_tokens_, request_generated_tokens_, request_longest_;
  Histogram request_n_, request_max_tokens_;

  Histogram time_to_first_token_, inter_token_latency_, time_per_output_token_;
  Histogram e2e_latency_, queue_time_, inference_time_, prefill_time_, decode_time_;
};

}  // namespace nvllm::launcher
