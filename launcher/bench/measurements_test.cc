#include "launcher/bench/measurements.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <vector>

#include "launcher/bench/startup.h"

namespace nvllm::launcher {

TEST_CASE("a quantile is a sample that so many do not exceed") {
  std::vector<double> samples;
  for (int i = 100; i >= 1; --i) samples.push_back(i);
  const Summary summary = summary_of(samples);
  CHECK(summary.mean == 50.5);
  CHECK(summary.p50 == 50);
  CHECK(summary.p90 == 90);
  CHECK(summary.p99 == 99);
  CHECK(summary.max == 100);
  CHECK(summary_of({3}).p99 == 3);
  CHECK(summary_of({}).mean == 0);
}

TEST_CASE("the hash is of tokens, log-probabilities and where requests end") {
  const auto hash_of = [](const std::vector<std::vector<runtime::TokenLogprob>>& requests) {
    std::vector<RequestRecord> records(requests.size());
    for (std::size_t i = 0; i < requests.size(); ++i) records[i].logprobs = requests[i];
    return hash_of_logprobs(records);
  };
  const runtime::TokenLogprob a{7, -1.5f, 1}, b{8, -0.25f, 1};
  const std::uint64_t hash = hash_of({{a, b}, {a}});
  CHECK(hash == hash_of({{a, b}, {a}}));
  const std::vector<std::vector<std::vector<runtime::TokenLogprob>>> others = {
      {{a, b}, {b}}, {{b, a}, {a}}, {{a}, {b, a}},
      {{a, b, a}},   {{a, b}, {}},  {{a, b}, {{7, std::nextafter(-1.5f, 0.0f), 1}}}};
  for (const auto& other : others) CHECK(hash != hash_of(other));
}

TEST_CASE("a hash is shown as 16 digits") {
  CHECK(hex_digits(0xabc) == "0000000000000abc");
}

TEST_CASE("the warm-up's batch shrinks by eight and at last by one") {
  const Workload workload = warmup_workload(32, 1000);
  std::multiset<std::int32_t> lengths;
  std::set<std::vector<std::int32_t>> prompts;
  for (const runtime::Request& request : workload.requests) {
    lengths.insert(*request.sampling.max_tokens);
    prompts.insert(request.prompt);
  }
  CHECK(prompts.size() == 32);
  std::set<std::size_t> sizes;  // sizes of decode batches
  for (std::int32_t step = 1; step < *lengths.rbegin(); ++step) {
    sizes.insert(static_cast<std::size_t>(std::distance(lengths.upper_bound(step), lengths.end())));
  }
  CHECK(sizes.count(32) == 1);
  CHECK(sizes.count(24) == 1);
  CHECK(sizes.count(16) == 1);
  CHECK(sizes.count(8) == 1);
}

TEST_CASE("what an engine did is the difference of what it says before and after") {
  runtime::EngineStatistics before, after;
  before.scheduler.steps = 10;
  after.scheduler.steps = 14;
  before.host_s = 1;
  after.host_s = 1.5;
  before.step_message_bytes = 100;
  after.step_message_bytes = 300;
  before.kv_bytes_to_host = 5;
  after.kv_bytes_to_host = 12;
  const EngineWork work = work_between(before, after);
  CHECK(work.steps == 4);
  CHECK(work.host_s == 0.5);
  CHECK(work.step_message_bytes == 50);
  CHECK(work.kv_bytes_to_host == 7);
  CHECK(work.kv_bytes_to_device == 0);
  CHECK(work_between(before, before).step_message_bytes == 0);
}

TEST_CASE("a batch's first sequences have tokens enough until the last ones have started") {
  runtime::EngineOptions options;
  options.max_num_batched_tokens = 2048;
  const LatencyPlan plan{.batch = 256, .prompt_tokens = 1024, .steps = 100, .vocabulary = 1000};
  // Every step computes at least this many prompt tokens, and one token of each running sequence.
  const std::int64_t prompt_steps = 256 * 1024 / (2048 - 256) + 1;
  CHECK(output_tokens_of(plan, options) >= 100 + prompt_steps + 1);
}

TEST_CASE("a stage is over when the last rank is through") {
  runtime::EngineInfo info;
  info.ranks.resize(2);
  info.ranks[0].report.start.joined_ns = 1'100'000'000;
  info.ranks[1].report.start.joined_ns = 1'200'000'000;
  info.ready_ns = 1'500'000'000;
  const std::vector<StartupStage> stages =
      startup_stages(1'000'000'000, info, 1'600'000'000, 1'700'000'000);
  CHECK(stages.front().name == "all ranks forked and joined");
  CHECK(stages.front().after_s == doctest::Approx(0.2));
  CHECK(stages.back().name == "first token");
  CHECK(stages.back().after_s == doctest::Approx(0.7));
}

}  // namespace nvllm::launcher
