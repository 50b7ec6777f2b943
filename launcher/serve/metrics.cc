#include "launcher/serve/metrics.h"

#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nvllm::launcher {

namespace {

// The buckets of vLLM's histograms, in seconds.
const std::vector<double> kRequestSeconds = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                             30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
const std::vector<double> kFirstTokenSeconds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                                0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                                20,    40,    80,   160,  640,  2560};
const std::vector<double> kOutputTokenSeconds = {
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
const std::vector<double> kStepTokens = {1,   8,    16,   32,   64,   128,  256,
                                         512, 1024, 2048, 4096, 8192, 16384};
const std::vector<double> kAnswers = {1, 2, 5, 10, 20};

// 1, 2, 5, 10, 20, 50, ... up to the maximum length.
std::vector<double> token_bounds(std::int64_t max_model_len) {
  std::vector<double> bounds;
  for (double power = 1;; power *= 10) {
    for (const double step : {1, 2, 5}) {
      if (step * power > static_cast<double>(max_model_len)) return bounds;
      bounds.push_back(step * power);
    }
  }
}

// nullopt unless both times are set.
std::optional<double> seconds_between(std::int64_t from_ns, std::int64_t to_ns) {
  if (from_ns == 0 || to_ns == 0) return std::nullopt;
  return static_cast<double>(to_ns - from_ns) / 1e9;
}

void observe(Histogram& histogram, std::optional<double> value) {
  if (value) histogram.observe(*value);
}

void add(std::atomic<std::uint64_t>& counter, std::int64_t tokens) {
  counter.fetch_add(static_cast<std::uint64_t>(tokens), std::memory_order_relaxed);
}

double value_of(const std::atomic<std::uint64_t>& counter) {
  return static_cast<double>(counter.load(std::memory_order_relaxed));
}

std::optional<double> resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t size = 0, resident = 0;
  if (!(file >> size >> resident)) return std::nullopt;
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

std::optional<double> cpu_seconds() {
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return std::nullopt;
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// When the machine was started, in seconds since 1970.
std::optional<double> boot_time() {
  std::ifstream file("/proc/stat");
  std::string word;
  double value = 0;
  while (file >> word) {
    if (word == "btime" && file >> value) return value;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

// When this process was started, in seconds since 1970.
std::optional<double> start_time() {
  constexpr int kStartTimeField = 22;  // of /proc/self/stat, from 1 on
  constexpr int kFieldBehindName = 3;
  std::ifstream file("/proc/self/stat");
  // The name, the second field, may contain anything; it ends with the last parenthesis.
  std::string line;
  if (!std::getline(file, line) || line.rfind(')') == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string field;
  for (int i = kFieldBehindName; i < kStartTimeField; ++i) fields >> field;
  double ticks = 0;
  const std::optional<double> boot = boot_time();
  if (!(fields >> ticks) || !boot) return std::nullopt;
  return *boot + ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

void write(PrometheusText& out, const char* name, const char* type, const char* help,
           std::optional<double> value) {
  if (!value) return;
  out.family(name, type, help);
  out.bare_sample(name, {}, *value);
}

// The process metrics of Prometheus' client libraries, for the front end, not its workers.
// Unavailable ones are omitted.
void write_process_metrics(PrometheusText& out) {
  write(out, "process_resident_memory_bytes", "gauge", "Resident memory of the front end.",
        resident_bytes());
  write(out, "process_cpu_seconds_total", "counter", "Processor time of the front end.",
        cpu_seconds());
  write(out, "process_start_time_seconds", "gauge", "When the front end was started.",
        start_time());
}

}  // namespace

ServerMetrics::ServerMetrics(ServerMetricsOptions options)
    : options_(std::move(options)),
      step_tokens_(kStepTokens),
      request_prompt_tokens_(token_bounds(options_.max_model_len)),
      request_generated_tokens_(token_bounds(options_.max_model_len)),
      request_longest_(token_bounds(options_.max_model_len)),
      request_n_(kAnswers),
      request_max_tokens_(token_bounds(options_.max_model_len)),
      time_to_first_token_(kFirstTokenSeconds),
      inter_token_latency_(kOutputTokenSeconds),
      time_per_output_token_(kOutputTokenSeconds),
      e2e_latency_(kRequestSeconds),
      queue_time_(kRequestSeconds),
      inference_time_(kRequestSeconds),
      prefill_time_(kRequestSeconds),
      decode_time_(kRequestSeconds) {}

void ServerMetrics::record_step(std::int64_t prompt_tokens, std::int64_t generated_tokens) {
  add(prompt_tokens_, prompt_tokens);
  add(generated_tokens_, generated_tokens);
  step_tokens_.observe(static_cast<double>(prompt_tokens + generated_tokens));
}

void ServerMetrics::record_first_token(double seconds) {
  time_to_first_token_.observe(seconds);
}

void ServerMetrics::record_inter_token(double seconds) {
  inter_token_latency_.observe(seconds);
}

void ServerMetrics::record_answer(const FinishedAnswer& answer) {
  finished_[static_cast<std::size_t>(answer.finish)].fetch_add(1, std::memory_order_relaxed);
  add(cached_tokens_, answer.cached_tokens);
  request_prompt_tokens_.observe(static_cast<double>(answer.prompt_tokens));
  request_generated_tokens_.observe(static_cast<double>(answer.generated_tokens));
  if (answer.max_tokens) request_max_tokens_.observe(static_cast<double>(*answer.max_tokens));
  if (answer.n > 0) {
    request_n_.observe(static_cast<double>(answer.n));
    request_longest_.observe(static_cast<double>(answer.longest));
  }
  const runtime::RequestTimes& times = answer.times;
  const auto decode = seconds_between(times.first_token_ns, times.last_token_ns);
  observe(e2e_latency_, seconds_between(answer.received_ns, answer.finished_ns));
  observe(queue_time_, seconds_between(times.arrived_ns, times.scheduled_ns));
  observe(prefill_time_, seconds_between(times.scheduled_ns, times.first_token_ns));
  observe(inference_time_, seconds_between(times.scheduled_ns, times.last_token_ns));
  observe(decode_time_, decode);
  if (decode && answer.generated_tokens > 1) {
    time_per_output_token_.observe(*decode / static_cast<double>(answer.generated_tokens - 1));
  }
}

void ServerMetrics::EngineCounter::set(std::uint64_t now) {
  total.fetch_add(now < last ? now : now - last, std::memory_order_relaxed);
  last = now;
}

void ServerMetrics::set_scheduler(const runtime::SchedulerStatistics& now) {
  running_.store(now.running, std::memory_order_relaxed);
  waiting_.store(now.waiting, std::memory_order_relaxed);
  const auto part = [](std::int64_t total, std::int64_t free) {
    return total == 0 ? 0.0 : static_cast<double>(total - free) / static_cast<double>(total);
  };
  // If there are two groups of layers, the fuller one limits admission.
  cache_usage_.store(std::max(part(now.total_blocks, now.free_blocks),
                              part(now.total_window_blocks, now.free_window_blocks)),
                     std::memory_order_relaxed);
  prefix_queries_.set(now.prefix.query_tokens);
  prefix_hits_.set(now.prefix.hit_tokens);
  preemptions_.set(now.preemptions);
}

void ServerMetrics::engine_lost() {
  set_scheduler({});
}

// --- The text ---

void ServerMetrics::write_scheduler(PrometheusText& out) const {
  out.gauge("vllm:num_requests_running", "Requests in the running batch.",
            static_cast<double>(running_.load(std::memory_order_relaxed)));
  out.gauge("vllm:num_requests_waiting", "Requests that wait to be scheduled.",
            static_cast<double>(waiting_.load(std::memory_order_relaxed)));
  out.gauge("vllm:kv_cache_usage_perc", "Part of the KV cache's blocks in use; 1 means all.",
            cache_usage_.load(std::memory_order_relaxed));
  out.family("vllm:cache_config_info", "gauge", "The KV cache's configuration, as labels.");
  out.sample("vllm:cache_config_info",
             {{"block_size", std::to_string(options_.block_size)},
              {"enable_prefix_caching", options_.prefix_caching ? "True" : "False"},
              {"num_cpu_blocks", std::to_string(options_.host_blocks)},
              {"num_gpu_blocks", std::to_string(options_.blocks)}},
             1);
  out.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
              value_of(prefix_queries_.total));
  out.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
              value_of(prefix_hits_.total));
  out.counter("vllm:num_preemptions_total", "Preempted requests.", value_of(preemptions_.total));
}

void ServerMetrics::write_tokens(PrometheusText& out) const {
  using runtime::FinishReason;
  out.counter("vllm:prompt_tokens_total", "Prompt tokens processed.", value_of(prompt_tokens_));
  out.counter("vllm:prompt_tokens_cached_total", "Prompt tokens that came from the prefix cache.",
              value_of(cached_tokens_));
  out.counter("vllm:generation_tokens_total", "Tokens generated.", value_of(generated_tokens_));
  out.family("vllm:request_success_total", "counter", "Answers that ended, by reason.");
  for (const FinishReason reason :
       {FinishReason::stop, FinishReason::length, FinishReason::abort, FinishReason::none}) {
    const char* const name = reason == FinishReason::none ? "error" : runtime::name_of(reason);
    out.sample("vllm:request_success_total", {{"finished_reason", name}},
               value_of(finished_[static_cast<std::size_t>(reason)]));
  }
  out.histogram("vllm:iteration_tokens_total", "Tokens per engine step.", step_tokens_);
  out.histogram("vllm:request_prompt_tokens", "Prompt tokens per request.", request_prompt_tokens_);
  out.histogram("vllm:request_generation_tokens", "Tokens generated per answer.",
                request_generated_tokens_);
  out.histogram("vllm:request_max_num_generation_tokens",
                "Tokens of the longest answer to each request.", request_longest_);
  out.histogram("vllm:request_params_n", "The requests' n.", request_n_);
  out.histogram("vllm:request_params_max_tokens", "The requests' max_tokens.", request_max_tokens_);
}

void ServerMetrics::write_times(PrometheusText& out) const {
  out.histogram("vllm:time_to_first_token_seconds", "From the request to its first token.",
                time_to_first_token_);
  out.histogram("vllm:inter_token_latency_seconds", "Between two updates of an answer.",
                inter_token_latency_);
  out.histogram("vllm:request_time_per_output_token_seconds",
                "Seconds per token of an answer, behind its first.", time_per_output_token_);
  out.histogram("vllm:e2e_request_latency_seconds", "From the request to the end of its answer.",
                e2e_latency_);
  out.histogram("vllm:request_queue_time_seconds", "In the queue, before it was scheduled.",
                queue_time_);
  out.histogram("vllm:request_inference_time_seconds", "From being scheduled to the last token.",
                inference_time_);
  out.histogram("vllm:request_prefill_time_seconds", "From being scheduled to the first token.",
                prefill_time_);
  out.histogram("vllm:request_decode_time_seconds", "From the first token to the last.",
                decode_time_);
}

std::string ServerMetrics::text() const {
  PrometheusText out(PrometheusLabels{{"model_name", options_.model_name}, {"engine", "0"}});
  write_scheduler(out);
  write_tokens(out);
  write_times(out);
  write_process_metrics(out);
  return out.take();
}

}  // namespace nvllm::launcher
