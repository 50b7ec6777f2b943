// The simulation against arithmetic: steps with known times, routers with known choices.
#include "benchmarks/simulation/simulation.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/simulation/scenario.h"
#include "testing/error_of.h"

namespace nvllm::simulation {
namespace {

// Every step takes one second.
const StepTime kSecond = {.decode = {{1, 1.0}}};

Simulation replicas(const StepTime& time, RouterOptions router = {}) {
  return {.engine = {.limits = {.max_model_len = 4096,
                                .max_num_seqs = 64,
                                .max_num_batched_tokens = 1024,
                                .max_logit_rows = 64,
                                .blocks = 4096,
                                .block_size = 16},
                     .async_scheduling = true,
                     .time = time},
          .router = router};
}

SimulationResult run(const StepTime& time, const RandomTraffic& traffic,
                     const RouterOptions& router = {}) {
  return simulate(replicas(time, router), *make_traffic(traffic));
}

// The share of cached prompt tokens with 4 replicas, in conversations with 150 to 200 tokens per
// turn.
double hit_share(Policy policy) {
  const Simulation simulation =
      replicas({.decode = {{1, 1e-3}}, .prompt_row = 1e-5}, {.policy = policy, .replicas = 4});
  const SimulationResult result =
      simulate(simulation, *make_traffic(Conversations{.conversations = 60,
                                                       .rate = 20,
                                                       .system_prompts = 2,
                                                       .system_tokens = 128,
                                                       .turns = {4, 4},
                                                       .input = {150, 200},
                                                       .output = {16, 16},
                                                       .think_s = 0.5}));
  const SimulationSummary summary = summary_of(result);
  return static_cast<double>(summary.cached_tokens) / static_cast<double>(summary.prompt_tokens);
}

std::string error_of(const char* scenario) {
  return nvllm::testing::error_of([&] { run_scenario(scenario); });
}

TEST_CASE("a step's time: decode rows between known ones, prompts by their rows, attention") {
  const StepTime time = {.decode = {{1, 10}, {5, 18}, {9, 20}},
                         .decode_context = 0.5,
                         .prompt_step = 3,
                         .prompt_row = 2,
                         .prompt_pair = 0.125};
  CHECK(time.decode_seconds(1) == 10);
  CHECK(time.decode_seconds(2) == 12);
  CHECK(time.decode_seconds(7) == 19);
  CHECK(time.decode_seconds(100) == 20);
  CHECK(time.seconds({.steps = 1, .decode_rows = 2, .decode_context = 8}) == 16);
  const StepWork prompts = {.steps = 1,
                            .decode_rows = 2,
                            .decode_context = 8,
                            .prompt_tokens = 10,
                            .prompt_pairs = 40,
                            .prompt_steps = 1,
                            .prompt_step_rows = 12};
  CHECK(time.seconds(prompts) == 3 + 24 + 4 + 5);
  const StepWork few = {
      .steps = 1, .prompt_tokens = 2, .prompt_pairs = 8, .prompt_steps = 1, .prompt_step_rows = 2};
  CHECK(time.seconds(few) == 12 + 1);
}

TEST_CASE("a single answer takes a step for its prompt and one for each further token") {
  const auto result = run({.decode = {{1, 1e-3}}, .prompt_row = 1e-4},
                          {.requests = 1, .input = {100, 100}, .output = {50, 50}});
  const RequestRecord& request = result.requests.at(0);
  CHECK(request.first_token == doctest::Approx(10e-3));
  CHECK(request.last_token == doctest::Approx(10e-3 + 49 * 1e-3));
  CHECK(request.output_tokens == 50);
}

TEST_CASE("steps are those of the scheduler: prompts fill a step, decodes come first") {
  // 4 prompts of 600 tokens, 1,024 rows per step.
  const auto result = run(kSecond, {.requests = 4, .input = {600, 600}, .output = {3, 3}});
  CHECK(result.requests.at(0).first_token == 1);
  CHECK(result.requests.at(1).first_token == 2);
  CHECK(result.requests.at(2).first_token == 2);
  CHECK(result.requests.at(3).first_token == 3);
  CHECK(result.first_tokens_s == 3);
  CHECK(result.work_until_first_tokens.steps == 3);
  CHECK(result.work.prompt_steps == 3);
  CHECK(result.work.prompt_tokens == 2400);
  CHECK(result.work.prompt_pairs == 4 * 600 * 601 / 2);
  CHECK(result.work.decode_rows == 8);
  CHECK(result.work.decode_context == 4 * (601 + 602));
  // Decode rows in steps with prefill: one in the second, three in the third.
  CHECK(result.work.prompt_step_rows == 2404);
}

TEST_CASE("a request that comes during a step is computed two steps later") {
  // At 10 per second, the interval is shorter than a step.
  const auto result = run(kSecond, {.requests = 2, .input = {8, 8}, .output = {9, 9}, .rate = 10});
  REQUIRE(result.requests.at(1).sent < 1);
  CHECK(result.requests.at(0).first_token == 1);
  CHECK(result.requests.at(1).first_token == 3);
}

TEST_CASE("without asynchronous scheduling it is computed in the next one") {
  Simulation simulation = replicas(kSecond);
  simulation.engine.async_scheduling = false;
  const RandomTraffic traffic{.requests = 2, .input = {8, 8}, .output = {9, 9}, .rate = 10};
  CHECK(simulate(simulation, *make_traffic(traffic)).requests.at(1).first_token == 2);
}

TEST_CASE("with a concurrency, a request is sent when another one ends") {
  const auto result =
      run(kSecond, {.requests = 6, .input = {8, 8}, .output = {4, 4}, .concurrency = 2});
  CHECK(result.requests.at(1).sent == 0);
  CHECK(result.requests.at(2).sent == result.requests.at(0).last_token);
  CHECK(result.requests.at(5).last_token == 12);
}

TEST_CASE("the same seed gives the same run, another one another") {
  const auto end = [](std::uint64_t seed) {
    return run({.decode = {{1, 1e-3}}, .prompt_row = 1e-5},
               {.requests = 50, .seed = seed, .rate = 100}, {.replicas = 3})
        .requests.at(49)
        .last_token;
  };
  CHECK(end(1) == end(1));
  CHECK(end(1) != end(2));
}

TEST_CASE("round robin deals requests out") {
  const RandomTraffic traffic{.requests = 40, .input = {8, 8}, .output = {1, 200}, .rate = 1};
  for (const ReplicaRecord& replica : run(kSecond, traffic, {.replicas = 4}).replicas)
    CHECK(replica.requests == 10);
}

TEST_CASE("the policy least_loaded takes the replica with the fewest requests") {
  Router router({.policy = Policy::fewest_requests, .replicas = 3});
  const std::vector<std::int32_t> prompt(100, 7);
  CHECK(router.choose(prompt) == 0);
  CHECK(router.choose(prompt) == 1);
  CHECK(router.choose(prompt) == 2);
  router.release(1);
  CHECK(router.choose(prompt) == 1);
}

TEST_CASE("the prefix hash chooses by the beginning alone") {
  Router router({.policy = Policy::prefix_hash, .replicas = 64, .prefix_tokens = 256});
  std::vector<std::int32_t> prompt(300);
  std::iota(prompt.begin(), prompt.end(), 0);
  const std::size_t replica = router.choose(prompt);
  prompt.at(256) = -5;
  CHECK(router.choose(prompt) == replica);
  std::vector<std::size_t> others;
  for (int i = 0; i < 8; ++i) {
    prompt.at(255) = 1000 + i;
    others.push_back(router.choose(prompt));
  }
  CHECK(others != std::vector<std::size_t>(8, replica));
}

TEST_CASE("cache aware goes to the longest prefix, unless that replica has too many requests") {
  Router router({.policy = Policy::cache_aware, .replicas = 4, .balance = 1.5});
  std::vector<std::int32_t> prompt(128, 1);
  const std::size_t first = router.choose(prompt);
  router.release(first);
  const std::vector<std::int32_t> other(128, 2);
  CHECK(router.choose(other) != first);  // unknown: goes to the next one in turn
  prompt.resize(500, 3);
  CHECK(router.choose(prompt) == first);  // 0 is below 1.5 * 1 / 4 + 1
  CHECK(router.choose(prompt) == first);  // 1 is below 1.5 * 2 / 4 + 1
  CHECK(router.choose(prompt) == first);  // 2 is below 1.5 * 3 / 4 + 1
  CHECK(router.choose(prompt) != first);  // 3 is not below 1.5 * 4 / 4 + 1
  Router strict({.policy = Policy::cache_aware, .replicas = 2, .balance = 1});
  CHECK(strict.choose(prompt) == 0);
  CHECK(strict.choose(prompt) == 0);  // 1 is below 1 / 2 + 1
  CHECK(strict.choose(prompt) == 1);  // 2 is not below 2 / 2 + 1
}

TEST_CASE("a request that has ended no longer counts as its replica's") {
  // When the third request arrives, the first one is still in flight, but the second one is not.
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto requests =
        run(kSecond, {.requests = 3, .input = {8, 8}, .output = {1, 60}, .seed = seed, .rate = 0.1},
            {.policy = Policy::fewest_requests, .replicas = 2})
            .requests;
    if (requests.at(0).last_token <= requests.at(2).sent) continue;
    if (requests.at(1).last_token >= requests.at(2).sent) continue;
    CHECK(requests.at(2).replica == requests.at(1).replica);
    return;
  }
  FAIL("no seed gives such requests");
}

TEST_CASE("a turn's prompt is all that was said before, and new tokens") {
  const auto traffic = make_traffic(Conversations{.conversations = 1,
                                                  .system_prompts = 1,
                                                  .system_tokens = 50,
                                                  .turns = {2, 2},
                                                  .input = {20, 20},
                                                  .output = {3, 3}});
  const std::optional<Arrival> first = traffic->next();
  REQUIRE(first);
  CHECK(first->prompt.size() == 70);
  CHECK(!traffic->next());
  const std::vector<std::int32_t> answer = {-1, -2, -3};
  const std::optional<Arrival> second = traffic->after(first->number, answer, 100);
  REQUIRE(second);
  CHECK(second->at > 100);
  CHECK(second->max_tokens == 3);
  std::vector<std::int32_t> said = first->prompt;
  said.insert(said.end(), answer.begin(), answer.end());
  REQUIRE(second->prompt.size() == 93);
  CHECK(std::equal(said.begin(), said.end(), second->prompt.begin()));
  CHECK(!traffic->after(second->number, answer, 200));
}

TEST_CASE("policies that know prefixes find those of conversations") {
  const double blind = hit_share(Policy::round_robin);
  CHECK(blind < 0.6);
  CHECK(hit_share(Policy::prefix_hash) > blind + 0.1);
  CHECK(hit_share(Policy::cache_aware) > blind + 0.1);
}

TEST_CASE("a scenario in JSON, and its result") {
  const auto result = run_scenario(
      R"({"step_time_us": {"decode": [[1, 1000]]}, "front_end_ms": 3,
          "traffic": {"requests": 2, "input_len": [8, 8], "output_len": [5, 5]},
          "router": {"replicas": 2, "policy": "least_loaded"}})");
  CHECK(result.at("output_tokens_per_s").get<double>() == doctest::Approx(10 / 8e-3));
  CHECK(result.at("ttft_ms").at("p50").get<double>() == doctest::Approx(4));
  CHECK(result.at("tpot_ms").at("p99").get<double>() == doctest::Approx(1));
  CHECK(result.at("cache_hit_share") == 0);
  CHECK(result.at("largest_over_mean_requests") == 1);
}

TEST_CASE("requests of the warm-up are not measured") {
  const auto result = run_scenario(
      R"({"step_time_us": {"decode": [[1, 1000]]}, "warmup_s": 5,
          "traffic": {"requests": 100, "rate": 10, "input_len": [8, 8], "output_len": [5, 5]}})");
  CHECK(result.at("requests") < 70);
  CHECK(result.at("requests") > 30);
  CHECK(result.at("duration_s") < 8);
  // 10 requests per second of 5 tokens, until the last one is sent.
  CHECK(result.at("steady_output_tokens_per_s").get<double>() == doctest::Approx(50).epsilon(0.2));
}

TEST_CASE("what is wrong with a scenario is named") {
  CHECK(error_of(R"({"engine": {"block": 1}})").starts_with("unknown field engine.block; known: "));
  CHECK(error_of(R"({"router": {"policy": "random"}})").starts_with("unknown policy 'random'"));
  CHECK(error_of(R"({"router": {"replicas": 257}})") == "replicas 257: must be 1 to 256");
  CHECK(error_of(R"({"traffic": {"rate": 0}})").starts_with("traffic: rate must be above 0"));
  CHECK(error_of(R"({"step_time_us": {"decode": [[8, 1], [1, 1]]}})")
            .starts_with("step_time_us.decode must be"));
  CHECK(error_of("{").starts_with("the scenario is no JSON: "));
  CHECK(error_of(R"({"engine": {"blocks": 4}})") != "");  // a prompt that can never run
}

}  // namespace
}  // namespace nvllm::simulation
