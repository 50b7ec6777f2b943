#include "launcher/serve/metrics.h"

#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "launcher/testing/test_file.h"
#include "testing/skip.h"

namespace nvllm::launcher {
namespace {

using runtime::FinishReason;

constexpr std::int64_t kMillisecond = 1'000'000;

ServerMetricsOptions small_model() {
  return {.model_name = "tiny", .max_model_len = 100, .blocks = 64, .block_size = 16};
}

// The value of a sample as it is written, "" if there is none.
std::string value_of(const std::string& text, const std::string& sample) {
  const std::size_t at = ("\n" + text).find("\n" + sample + " ");
  if (at == std::string::npos) return "";
  const std::size_t begin = at + sample.size() + 1;
  return text.substr(begin, text.find('\n', begin) - begin);
}

std::string metric(const ServerMetrics& metrics, const std::string& name,
                   const std::string& more = "") {
  return value_of(metrics.text(), name + R"({model_name="tiny",engine="0")" + more + "}");
}

FinishedAnswer answer_of_five_tokens() {
  return {.times = {.arrived_ns = 1000 * kMillisecond,
                    .scheduled_ns = 1400 * kMillisecond,
                    .first_token_ns = 2000 * kMillisecond,
                    .last_token_ns = 2800 * kMillisecond},
          .received_ns = 999 * kMillisecond,
          .finished_ns = 2999 * kMillisecond,
          .finish = FinishReason::stop,
          .prompt_tokens = 7,
          .generated_tokens = 5,
          .cached_tokens = 4,
          .max_tokens = 16,
          .n = 2,
          .longest = 9};
}

TEST_CASE("a histogram's buckets are cumulative, and hold their bounds") {
  Histogram histogram({1, 2, 5});
  for (const double value : {0.5, 1.0, 1.5, 5.0, 6.0}) histogram.observe(value);
  const Histogram::Reading reading = histogram.read();
  CHECK(reading.cumulative == std::vector<std::uint64_t>{2, 3, 4, 5});
  CHECK(reading.sum == 14.0);
}

TEST_CASE("a time that clocks made negative counts as none") {
  Histogram histogram({1});
  histogram.observe(-0.5);
  CHECK(histogram.read().cumulative[0] == 1);
  CHECK(histogram.read().sum == 0);
}

TEST_CASE("a histogram is written with its buckets, sum and count") {
  Histogram histogram({0.25, 1});
  histogram.observe(0.5);
  histogram.observe(2);
  PrometheusText text(PrometheusLabels{{"model_name", "m"}});
  text.histogram("a_seconds", "A time.", histogram);
  CHECK(text.take() ==
        "# HELP a_seconds A time.\n"
        "# TYPE a_seconds histogram\n"
        "a_seconds_bucket{model_name=\"m\",le=\"0.25\"} 0\n"
        "a_seconds_bucket{model_name=\"m\",le=\"1.0\"} 1\n"
        "a_seconds_bucket{model_name=\"m\",le=\"+Inf\"} 2\n"
        "a_seconds_sum{model_name=\"m\"} 2.5\n"
        "a_seconds_count{model_name=\"m\"} 2\n");
}

TEST_CASE("bounds are written as Prometheus' Python client writes them") {
  CHECK(bucket_bound(0.001) == "0.001");
  CHECK(bucket_bound(1) == "1.0");
  CHECK(bucket_bound(500000) == "500000.0");
  CHECK(bucket_bound(1e6) == "1e+06");
  CHECK(bucket_bound(2e7) == "2e+07");
}

TEST_CASE("labels are escaped") {
  PrometheusText text(PrometheusLabels{{"model_name", "a \"b\"\\\nc"}});
  text.gauge("up", "One\nline \\ \"two\".", 1);
  CHECK(text.take() ==
        "# HELP up One\\nline \\\\ \"two\".\n"
        "# TYPE up gauge\n"
        "up{model_name=\"a \\\"b\\\"\\\\\\nc\"} 1\n");
}

TEST_CASE("a step counts its tokens") {
  ServerMetrics metrics(small_model());
  metrics.record_step(10, 3);
  metrics.record_step(0, 2);
  CHECK(metric(metrics, "vllm:prompt_tokens_total") == "10");
  CHECK(metric(metrics, "vllm:generation_tokens_total") == "5");
  CHECK(metric(metrics, "vllm:iteration_tokens_total_count") == "2");
  CHECK(metric(metrics, "vllm:iteration_tokens_total_sum") == "15");
  CHECK(metric(metrics, "vllm:iteration_tokens_total_bucket", R"(,le="8.0")") == "1");
}

TEST_CASE("a finished answer's times are those between its moments") {
  ServerMetrics metrics(small_model());
  metrics.record_answer(answer_of_five_tokens());
  CHECK(metric(metrics, "vllm:e2e_request_latency_seconds_sum") == "2");
  CHECK(metric(metrics, "vllm:request_queue_time_seconds_sum") == "0.4");
  CHECK(metric(metrics, "vllm:request_prefill_time_seconds_sum") == "0.6");
  CHECK(metric(metrics, "vllm:request_decode_time_seconds_sum") == "0.8");
  CHECK(metric(metrics, "vllm:request_inference_time_seconds_sum") == "1.4");
  CHECK(metric(metrics, "vllm:request_time_per_output_token_seconds_sum") == "0.2");
}

TEST_CASE("a finished answer counts its tokens and its request's parameters") {
  ServerMetrics metrics(small_model());
  metrics.record_answer(answer_of_five_tokens());
  CHECK(metric(metrics, "vllm:request_prompt_tokens_sum") == "7");
  CHECK(metric(metrics, "vllm:request_generation_tokens_sum") == "5");
  CHECK(metric(metrics, "vllm:request_max_num_generation_tokens_sum") == "9");
  CHECK(metric(metrics, "vllm:request_params_n_sum") == "2");
  CHECK(metric(metrics, "vllm:request_params_max_tokens_sum") == "16");
  CHECK(metric(metrics, "vllm:prompt_tokens_cached_total") == "4");
}

TEST_CASE("n is counted once per request, max_tokens where there is one") {
  ServerMetrics metrics(small_model());
  FinishedAnswer answer = answer_of_five_tokens();
  answer.n = 0;
  answer.max_tokens = std::nullopt;
  metrics.record_answer(answer);
  CHECK(metric(metrics, "vllm:request_params_n_count") == "0");
  CHECK(metric(metrics, "vllm:request_max_num_generation_tokens_count") == "0");
  CHECK(metric(metrics, "vllm:request_params_max_tokens_count") == "0");
}

TEST_CASE("an answer that was aborted in the queue has no times of the engine") {
  ServerMetrics metrics(small_model());
  FinishedAnswer answer = answer_of_five_tokens();
  answer.times = {.arrived_ns = 1000 * kMillisecond};
  answer.finish = FinishReason::abort;
  metrics.record_answer(answer);
  CHECK(metric(metrics, "vllm:request_queue_time_seconds_count") == "0");
  CHECK(metric(metrics, "vllm:request_decode_time_seconds_count") == "0");
  CHECK(metric(metrics, "vllm:e2e_request_latency_seconds_count") == "1");
}

TEST_CASE("answers are counted by the reason of their end") {
  ServerMetrics metrics(small_model());
  const auto record = [&](FinishReason finish) { metrics.record_answer({.finish = finish}); };
  const auto counted = [&](const std::string& reason) {
    return metric(metrics, "vllm:request_success_total", ",finished_reason=\"" + reason + "\"");
  };
  record(FinishReason::stop);
  record(FinishReason::stop);
  record(FinishReason::length);
  record(FinishReason::none);
  CHECK(counted("stop") == "2");
  CHECK(counted("length") == "1");
  CHECK(counted("abort") == "0");
  CHECK(counted("error") == "1");
}

TEST_CASE("latencies are counted as they come") {
  ServerMetrics metrics(small_model());
  metrics.record_first_token(0.03);
  metrics.record_inter_token(0.02);
  metrics.record_inter_token(0.5);
  CHECK(metric(metrics, "vllm:time_to_first_token_seconds_bucket", R"(,le="0.02")") == "0");
  CHECK(metric(metrics, "vllm:time_to_first_token_seconds_bucket", R"(,le="0.04")") == "1");
  CHECK(metric(metrics, "vllm:inter_token_latency_seconds_bucket", R"(,le="0.025")") == "1");
  CHECK(metric(metrics, "vllm:inter_token_latency_seconds_count") == "2");
}

TEST_CASE("buckets of tokens end at the longest sequence") {
  ServerMetrics metrics(small_model());
  CHECK(metric(metrics, "vllm:request_prompt_tokens_bucket", R"(,le="100.0")") == "0");
  CHECK(metric(metrics, "vllm:request_prompt_tokens_bucket", R"(,le="200.0")") == "");
}

runtime::SchedulerStatistics busy() {
  runtime::SchedulerStatistics now;
  now.running = 3;
  now.waiting = 2;
  now.free_blocks = 48;
  now.total_blocks = 64;
  now.prefix.query_tokens = 100;
  now.prefix.hit_tokens = 40;
  now.preemptions = 1;
  return now;
}

TEST_CASE("gauges are the scheduler's, and return to 0") {
  ServerMetrics metrics(small_model());
  metrics.set_scheduler(busy());
  CHECK(metric(metrics, "vllm:num_requests_running") == "3");
  CHECK(metric(metrics, "vllm:num_requests_waiting") == "2");
  CHECK(metric(metrics, "vllm:kv_cache_usage_perc") == "0.25");
  runtime::SchedulerStatistics with_windows = busy();
  with_windows.free_window_blocks = 4;
  with_windows.total_window_blocks = 8;
  metrics.set_scheduler(with_windows);
  CHECK(metric(metrics, "vllm:kv_cache_usage_perc") == "0.5");
  metrics.engine_lost();
  CHECK(metric(metrics, "vllm:num_requests_running") == "0");
  CHECK(metric(metrics, "vllm:num_requests_waiting") == "0");
  CHECK(metric(metrics, "vllm:kv_cache_usage_perc") == "0");
}

TEST_CASE("counters of a restarted engine go on") {
  ServerMetrics metrics(small_model());
  metrics.set_scheduler(busy());
  runtime::SchedulerStatistics restarted = busy();
  restarted.prefix.query_tokens = 30;
  metrics.engine_lost();
  metrics.set_scheduler(restarted);
  CHECK(metric(metrics, "vllm:prefix_cache_queries_total") == "130");
  CHECK(metric(metrics, "vllm:num_preemptions_total") == "2");
  // Also where nobody noticed the restart.
  restarted.prefix.query_tokens = 5;
  metrics.set_scheduler(restarted);
  CHECK(metric(metrics, "vllm:prefix_cache_queries_total") == "135");
}

TEST_CASE("the cache's configuration is in labels") {
  ServerMetrics metrics(small_model());
  CHECK(metric(metrics, "vllm:cache_config_info",
               R"(,block_size="16",enable_prefix_caching="True",)"
               R"(num_cpu_blocks="0",num_gpu_blocks="64")") == "1");
}

TEST_CASE("the process tells its memory, time and start") {
  const std::string text = ServerMetrics(small_model()).text();
  CHECK(std::stod(value_of(text, "process_resident_memory_bytes")) > 1e5);
  CHECK(std::stod(value_of(text, "process_cpu_seconds_total")) >= 0);
  const double started = std::stod(value_of(text, "process_start_time_seconds"));
  CHECK(started > static_cast<double>(time(nullptr)) - 3600);
  CHECK(started < static_cast<double>(time(nullptr)) + 60);
}

TEST_CASE("no count is lost among several threads, and a scrape meanwhile is sound") {
  constexpr int kThreads = 3, kTimes = 2000;
  ServerMetrics metrics(small_model());
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        for (int j = 0; j < kTimes; ++j) {
          metrics.record_inter_token(0.25);
          metrics.record_step(1, 1);
        }
      });
    }
    for (int i = 0; i < 20; ++i) {
      const std::string text = metrics.text();
      const std::string labels = R"({model_name="tiny",engine="0")";
      const std::string base = "vllm:inter_token_latency_seconds";
      CHECK(value_of(text, str(base, "_bucket", labels, R"(,le="+Inf"})")) ==
            value_of(text, str(base, "_count", labels, "}")));
    }
  }
  CHECK(metric(metrics, "vllm:inter_token_latency_seconds_count") == "6000");
  CHECK(metric(metrics, "vllm:inter_token_latency_seconds_sum") == "1500");
  CHECK(metric(metrics, "vllm:prompt_tokens_total") == "6000");
}

// What a shell command prints, and its exit code.
struct CommandResult {
  std::string output;
  int exit_code = -1;
};

CommandResult run_shell(const std::string& command) {
  CommandResult result;
  FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return result;
  std::array<char, 4096> buffer{};
  while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) result.output += buffer.data();
  result.exit_code = WEXITSTATUS(::pclose(pipe));
  return result;
}

// promtool is a part of Debian's package prometheus.
TEST_CASE("promtool has nothing to say but that vLLM's names are unusual") {
  const char* const given = ::getenv("PROMTOOL");
  const std::string promtool = given != nullptr ? given : "promtool";
  if (run_shell(promtool + " --version 2>&1").exit_code != 0) {
    SKIP_TEST("needs promtool (Debian's package prometheus)");
  }
  ServerMetricsOptions options = small_model();
  options.model_name = "a \"quoted\"\nname\\";
  ServerMetrics metrics(options);
  metrics.set_scheduler(busy());
  metrics.record_answer(answer_of_five_tokens());
  const TestFile file(metrics.text());
  const CommandResult checked = run_shell(promtool + " check metrics <" + file.path() + " 2>&1");
  CHECK(checked.exit_code != 1);  // 1: it cannot be read; 3: remarks
  std::istringstream lines(checked.output);
  for (std::string line; std::getline(lines, line);) {
    CAPTURE(line);
    CHECK((line.find("should not contain ':'") != std::string::npos ||
           line.find("iteration_tokens_total non-counter") != std::string::npos));
  }
}

}  // namespace
}  // namespace nvllm::launcher
