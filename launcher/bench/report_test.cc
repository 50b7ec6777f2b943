#include "launcher/bench/report.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "launcher/bench/startup.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::json;

// Reads 1 GB of weights and 1 MB per token of context, at 1 GB/s.
BenchSubject subject(const char* benchmark) {
  BenchSubject subject{.benchmark = benchmark, .model = "a/model"};
  subject.dummy = true;
  subject.cost = {.layer_bytes = 0.75e9, .head_bytes = 0.25e9, .kv_bytes = 1e6};
  subject.speed = {.bytes_per_second = 1e9,
                   .flops_per_second = 1e12,
                   .attention_flops_per_second = 1e12,
                   .source = "given"};
  subject.info.ranks.resize(2);
  subject.info.ranks[0].report.device = "CPU, 2 cores";
  return subject;
}

LatencyResult latency() {
  LatencyResult result;
  result.plan.batch = 4;
  result.plan.steps = 100;
  result.prefill_s = 0.5;
  result.steps = 100;
  result.seconds = 280;
  result.step_s = summary_of(std::vector<double>(100, 2.8));
  result.rows = 4;
  result.context = 100;
  return result;
}

LongResult long_result(LongMode mode) {
  LongResult result{.mode = mode};
  result.prefill_tokens = 1000;
  result.prefill_s = 40;
  result.context = 1000;
  result.decode_steps = 10;
  result.decode_s = 40;
  return result;
}

StartupRun startup(std::int64_t started_ns, double first_token_s) {
  return {.started_ns = started_ns,
          .exec_s = std::nullopt,
          .stages = {{"devices ready", first_token_s / 2}, {"first token", first_token_s}}};
}

StartedRun started(double first_token_s, double exec_s) {
  return {.report = format_json(subject("startup"), std::vector{startup(7, first_token_s)}),
          .exec_s = exec_s};
}

}  // namespace

TEST_CASE("a batch's share of the floor is that of its own rows and contexts") {
  const std::vector<LatencyResult> results = {latency()};
  const Json json = parse_json(format_json(subject("latency"), results));
  const Json batch = json.at("batches").at(0);
  CHECK(batch.at("mean_step_ms") == doctest::Approx(2800));
  CHECK(batch.at("floor_ms") == doctest::Approx(1400));  // 1 GB and 4 x 100 MB
  CHECK(batch.at("of_floor") == doctest::Approx(0.5));
  CHECK(batch.at("tokens_per_s") == doctest::Approx(4 / 2.8));
  CHECK(json.at("ranks") == 2);
  CHECK(json.at("load_format") == "dummy");

  const std::string table = format_table(subject("latency"), results);
  CHECK(
      table.starts_with("nvllm 0.2.0 bench latency: a/model (random weights), bfloat16, 2 ranks "
                        "on CPU, 2 cores\n"));
  CHECK(table.find("50.0%") != std::string::npos);
  CHECK(table.find("warm-up: a batch of other prompts and 16 steps") != std::string::npos);
}

TEST_CASE("weights that a cache holds have a floor, but no share of it") {
  BenchSubject one = subject("latency");
  one.speed.cache_bytes = 2e9;
  const std::vector<LatencyResult> results = {latency()};
  CHECK(parse_json(format_json(one, results)).at("batches").at(0).at("of_floor").is_null());
  const std::string table = format_table(one, results);
  CHECK(table.find('%') == std::string::npos);
  CHECK(table.find("those of this model fit into a cache of 1.86 GiB, so no share of it is told") !=
        std::string::npos);
  ThroughputReport throughput;
  throughput.floor_s = 5;
  throughput.result.seconds = 10;
  CHECK(parse_json(format_json(one, throughput)).at("floor").at("of_floor").is_null());
  CHECK(format_table(one, throughput).find("of the floor's speed") == std::string::npos);
}

TEST_CASE("throughput tells tokens per second, the floor and the warm-up") {
  ThroughputReport report;
  report.at_once = 2;
  report.floor_s = 5;
  report.result.warmup_prompts = 2;
  report.result.seconds = 10;
  report.result.prompts = 3;
  report.result.prompt_tokens = 300;
  report.result.output_tokens = 600;
  report.result.work.steps = 300;
  const Json json = parse_json(format_json(subject("throughput"), report));
  CHECK(json.at("output_tokens_per_s") == 60);
  CHECK(json.at("total_tokens_per_s") == 90);
  CHECK(json.at("mean_batch") == 2);
  CHECK(json.at("floor").at("of_floor") == 0.5);
  CHECK(json.at("workload").at("max_concurrency") == 2);
  CHECK(!json.contains("logprobs_hash"));

  const std::string table = format_table(subject("throughput"), report);
  CHECK(table.find("warm-up: 2 short prompts") != std::string::npos);
  report.result.warmup_prompts = 0;
  CHECK(format_table(subject("throughput"), report).find("no warm-up") != std::string::npos);

  report.result.logprobs_hash = 0xabc;
  CHECK(parse_json(format_json(subject("throughput"), report)).at("logprobs_hash") ==
        "0000000000000abc");
  CHECK(format_table(subject("throughput"), report).find("0000000000000abc") != std::string::npos);
}

TEST_CASE("what a mode moves over PCIe is its floor, where that takes longer than computing") {
  const LinkSpeed link{.to_device = 0.5e9, .to_host = 0.25e9, .source = "given"};
  const BenchSubject one = subject("long");
  const auto prefill = [&](LongMode mode, std::int64_t step_tokens) {
    return prefill_floor(long_result(mode), one.cost, one.speed, link, step_tokens).link_s;
  };
  CHECK(prefill(LongMode::paged, 8192) == 0);
  CHECK(prefill(LongMode::layerwise, 100) == doctest::Approx(4));  // 1 GB out
  CHECK(prefill(LongMode::chunked, 1000) == doctest::Approx(4));
  // 100 + 200 + ... + 900 tokens of 1 MB in, at 0.5 GB/s.
  CHECK(prefill(LongMode::chunked, 100) == doctest::Approx(9));

  // Half of it stays: 100 + ... + 400 tokens are left to be read.
  LongResult half = long_result(LongMode::hybrid);
  half.resident_blocks = 50;
  half.block_size = 10;
  CHECK(prefill_floor(half, one.cost, one.speed, link, 100).link_s == doctest::Approx(4));
  CHECK(prefill_floor(half, one.cost, one.speed, {.to_device = 0.1e9, .to_host = 1e9, .source = ""},
                      100)
            .link_s == doctest::Approx(10));
  CHECK(decode_floor(half, one.cost, one.speed, link).link_s == doctest::Approx(1));
  LongResult all = half;
  all.blocks = all.resident_blocks = 100;
  CHECK(prefill_floor(all, one.cost, one.speed, link, 100).link_s == 0);
  CHECK(decode_floor(all, one.cost, one.speed, link).link_s == 0);

  LongReport report{.plan = {}, .link = link, .modes = {}};
  report.modes = {long_result(LongMode::paged),
                  long_result(LongMode::layerwise),
                  {.mode = LongMode::chunked, .error = "no room"}};
  const Json modes = parse_json(format_json(one, report)).at("modes");
  CHECK(modes.at(0).at("decode").at("floor").at("link_s") == 0);
  CHECK(modes.at(0).at("decode").at("floor").at("of_floor") == doctest::Approx(0.5));  // 2 of 4 s
  CHECK(modes.at(1).at("decode").at("floor").at("link_s") == doctest::Approx(2));
  CHECK(modes.at(2).at("error") == "no room");

  const std::string table = format_table(one, report);
  CHECK(table.find("chunked: not measured: no room\n") != std::string::npos);
  CHECK(table.find("PCIe: 0.500 GB/s to each device, 0.250 GB/s to the host (given)\n") !=
        std::string::npos);
}

TEST_CASE("several starts: the median with its own stages, and the minimum") {
  const std::vector<StartedRun> runs = {started(0.9, 0.1), started(0.5, 0.1), started(0.6, 0.1)};
  const Json json = parse_json(join_starts(runs, true));
  CHECK(json.at("median_s") == doctest::Approx(0.7));
  CHECK(json.at("min_s") == doctest::Approx(0.6));
  CHECK(json.at("runs").size() == 3);
  CHECK(json.at("runs").at(0).at("seconds") == doctest::Approx(1.0));
  CHECK(json.at("model") == "a/model");

  const std::string table = join_starts(runs, false);
  CHECK(table.find("median 700 ms, min 600 ms of 3 starts") != std::string::npos);
  CHECK(table.find("program running") != std::string::npos);
  CHECK(table.find("400") != std::string::npos);  // devices ready, of the median: 100 + 300
}

TEST_CASE("a start's report that is none is an error") {
  CHECK_THROWS_AS(parse_startup_run("{}"), Error);
  CHECK_THROWS_AS(parse_startup_run("not JSON"), Error);
}

TEST_CASE("the line says how many requests are done, and comes five times a second") {
  constexpr std::int64_t kSecond = 1'000'000'000;
  BenchProgress progress(0);
  std::vector<RequestRecord> records(3);
  records[0].tokens = 100;
  records[0].finished = true;
  records[1].tokens = 20;
  CHECK(progress.line({}, 8, kSecond) == "");
  CHECK(progress.clear() == "");
  CHECK(progress.line(records, 8, kSecond / 10) == "");
  const std::string line = progress.line(records, 8, 2 * kSecond);
  CHECK(line.find("measuring 1 of 8 requests done, 120 tokens, 60.0 tok/s") != std::string::npos);
  CHECK(line.find('\n') == std::string::npos);
  CHECK(progress.line(records, 8, 2 * kSecond + kSecond / 5 - 1) == "");
  CHECK(progress.line(records, 8, 2 * kSecond + kSecond / 5) != "");
  CHECK(progress.clear() != "");
  CHECK(progress.clear() == "");
  CHECK(progress.line(records, 0, 3 * kSecond).find("1 of 3 requests") != std::string::npos);
}

}  // namespace nvllm::launcher
