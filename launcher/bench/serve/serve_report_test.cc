// Statistics of known timings, and how they are printed.
#include "launcher/bench/serve/serve_report.h"

#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json_text.h"

namespace nvllm::launcher {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;

// A record of a request sent at that time, with five tokens every 10 ms from `ttft` on.
ServeRecord record(std::int64_t sent_ms, std::int64_t ttft_ms) {
  ServeRecord one;
  one.sent_ns = one.due_ns = (1 + sent_ms) * kMillisecond;
  one.first_ns = one.sent_ns + ttft_ms * kMillisecond;
  one.last_ns = one.first_ns + 40 * kMillisecond;
  one.gaps_s = {0.01F, 0.01F, 0.01F, 0.01F};
  one.chunks = one.output_tokens = 5;
  one.prompt_tokens = 100;
  one.counted = one.ended = true;
  return one;
}

ServeRecord failed(const std::string& kind, const std::string& message) {
  ServeRecord one = record(0, 0);
  one.failure = kind;
  one.message = message;
  return one;
}

ServeReport report_of(const std::vector<ServeRecord>& records, const GoodputLimits& limits = {}) {
  ServeReport report;
  report.model = "a-model";
  report.base_urls = {"http://a:1"};
  report.options.goodput = limits;
  report.statistics = statistics_of(records, limits);
  return report;
}

}  // namespace

TEST_CASE("statistics have the meanings of vLLM's") {
  std::vector<ServeRecord> records;
  for (int i = 0; i < 100; ++i) records.push_back(record(10 * i, i + 1));
  const ServeStatistics s = statistics_of(records, {});
  CHECK(s.seconds == doctest::Approx(0.99 + 0.1 + 0.04));
  CHECK(s.completed == 100);
  CHECK(s.output_tokens == 500);
  CHECK(s.per_second(s.prompt_tokens) == doctest::Approx(10'000 / 1.13));
  CHECK(s.ttft_s.mean == doctest::Approx(0.0505));
  CHECK(s.ttft_s.p50 == doctest::Approx(0.050));
  CHECK(s.ttft_s.p90 == doctest::Approx(0.090));
  CHECK(s.ttft_s.p99 == doctest::Approx(0.099));
  CHECK(s.ttft_s.max == doctest::Approx(0.100));
  CHECK(s.tpot_s.mean == doctest::Approx(0.010));
  CHECK(s.itl_s.p99 == doctest::Approx(0.010));
  CHECK(s.e2el_s.max == doctest::Approx(0.140));
}

TEST_CASE("one token alone has no time per output token") {
  ServeRecord one = record(0, 10);
  one.output_tokens = one.chunks = 1;
  one.gaps_s.clear();
  one.last_ns = one.first_ns;
  const std::vector<ServeRecord> records = {one, record(0, 10)};
  CHECK(statistics_of(records, {}).tpot_s.mean == doctest::Approx(0.010));
}

TEST_CASE("goodput counts requests that keep all limits") {
  const std::vector<ServeRecord> records = {record(0, 10), record(0, 20), record(0, 30)};
  CHECK(statistics_of(records, {.ttft_ms = 20, .tpot_ms = {}, .e2el_ms = {}}).good == 2);
  CHECK(statistics_of(records, {.ttft_ms = 20, .tpot_ms = 9, .e2el_ms = {}}).good == 0);
  CHECK(statistics_of(records, {.ttft_ms = {}, .tpot_ms = 10, .e2el_ms = 55}).good == 1);
  CHECK(statistics_of(records, {}).good == 3);
}

TEST_CASE("requests in flight are counted at their peak") {
  // 50 ms each: the second starts while the first runs, the third when the first has ended.
  const std::vector<ServeRecord> records = {record(0, 10), record(20, 10), record(50, 10)};
  CHECK(statistics_of(records, {}).max_concurrent == 2);
}

TEST_CASE("failures are counted by kind and change no latency") {
  const std::vector<ServeRecord> records = {record(0, 10), failed("HTTP 503", "full"),
                                            failed("HTTP 503", "still full"),
                                            failed("timeout", "x")};
  const ServeStatistics s = statistics_of(records, {});
  CHECK((s.completed == 1 && s.failed() == 3));
  CHECK(s.failures.at("HTTP 503").count == 2);
  CHECK(s.failures.at("HTTP 503").example == "full");
  CHECK(s.ttft_s.mean == doctest::Approx(0.010));
  CHECK(format_table(report_of(records)).find("failed, HTTP 503: 2 requests; full\n") !=
        std::string::npos);
}

TEST_CASE("JSON has the keys of vLLM's result files") {
  const std::vector<ServeRecord> records = {record(0, 10), record(0, 30), failed("timeout", "x")};
  ServeReport report = report_of(records, {.ttft_ms = 20, .tpot_ms = {}, .e2el_ms = {}});
  report.pace.max_concurrency = 64;
  const nlohmann::json json = parse_json(format_json(report));
  CHECK(json.at("request_rate") == "inf");
  CHECK(json.at("max_concurrency") == 64);
  CHECK((json.at("completed") == 2 && json.at("failed") == 1));
  CHECK(json.at("duration").get<double>() == doctest::Approx(0.07));
  CHECK(json.at("output_throughput").get<double>() == doctest::Approx(10 / 0.07));
  CHECK(json.at("request_goodput").get<double>() == doctest::Approx(1 / 0.07));
  CHECK(json.at("median_ttft_ms").get<double>() == doctest::Approx(10));
  CHECK(json.at("p99_e2el_ms").get<double>() == doctest::Approx(70));
  for (const char* key :
       {"mean_tpot_ms", "median_itl_ms", "total_input_tokens", "total_output_tokens",
        "request_throughput", "total_token_throughput", "max_concurrent_requests"}) {
    CHECK(json.contains(key));
  }
  CHECK(json.at("failures").at("timeout").at("count") == 1);
}

TEST_CASE("the table says what was done and what came of it") {
  ServeReport report = report_of({record(0, 10)}, {.ttft_ms = 20, .tpot_ms = {}, .e2el_ms = {}});
  report.pace = {.rate = 4, .burstiness = 0.5, .max_concurrency = 8};
  const std::string table = format_table(report);
  for (const char* part :
       {"bench serve: a-model at http://a:1, /v1/completions\n",
        "prompts of 100 to 1024 tokens, answers of 100 to 1024; 4 requests/s (burstiness 0.5)",
        ", at most 8 in flight; warm-up: 0 requests\n", "requests/s with TTFT <= 20 ms", "TTFT",
        "TPOT", "ITL", "E2EL", "client: "}) {
    CAPTURE(part);
    CHECK(table.find(part) != std::string::npos);
  }
}

TEST_CASE("each request can be written as a line") {
  const std::vector<ServeRecord> records = {record(0, 10), failed("timeout", "nothing came")};
  const std::string lines = format_requests(report_of(records), records);
  const std::size_t newline = lines.find('\n');
  const nlohmann::json first = parse_json(lines.substr(0, newline));
  CHECK(first.at("ttft_ms").get<double>() == doctest::Approx(10));
  CHECK(first.at("itl_ms") == nlohmann::json({10.0, 10.0, 10.0, 10.0}));
  const nlohmann::json second = parse_json(lines.substr(newline + 1));
  CHECK(second.at("failure") == "timeout");
  CHECK(second.at("message") == "nothing came");
}

}  // namespace nvllm::launcher
