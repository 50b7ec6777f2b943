// Whole runs against the continuations that transformers computed for tests/data/golden-models, on
// one to four ranks and in pipeline stages.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "base/text.h"
#include "runtime/engine/testing/test_engine.h"
#include "testing/device_ranks.h"
#include "testing/sanitizers.h"

namespace nvllm::runtime {
namespace {

constexpr const char* kModels[] = {
    "llama-dynamic",        "llama-llama3",   "llama-tied",   "mistral-hd128", "qwen2-bias",
    "qwen2-linear",         "qwen3-gqa-tied", "qwen3-uneven", "qwen3-yarn",    "mixtral",
    "qwen3moe-dense-layer", "qwen2-window",   "gemma3-text",  "gptoss-bf16",   "qwen35-dense",
    "qwen35-moe",           "qwen3next",      "qwen3moe-fp8", "gptoss-mxfp4",  "qwen35-moe-fp8",
    "gemma4-dense",         "gemma4-ple",     "gemma4-moe"};

struct Expected {
  std::vector<std::int32_t> prompt, continuation;
  std::vector<float> logprobs;
  std::optional<std::size_t> first_eos;  // an index in the continuation
};

// With dynamic NTK scaling, the continuation that uses one table for all lengths.
std::vector<Expected> expected_of(const std::string& folder) {
  std::ifstream file(folder + "/expected.json");
  const auto json = read_json(file);
  std::vector<Expected> all;
  for (std::size_t i = 0; i < json["prompts"].size(); ++i) {
    const auto& run = json.contains("static") ? json["static"][i] : json["prompts"][i];
    Expected expected{.prompt = json["prompts"][i]["ids"],
                      .continuation = run["continuation"],
                      .logprobs = run["logprobs"],
                      .first_eos = {}};
    if (run.contains("first_eos") && !run["first_eos"].is_null()) {
      expected.first_eos = run["first_eos"].get<std::size_t>();
    }
    all.push_back(std::move(expected));
  }
  return all;
}

Request greedy(const Expected& expected, bool ignore_eos) {
  Request request;
  request.prompt = expected.prompt;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = static_cast<std::int32_t>(expected.continuation.size());
  request.sampling.ignore_eos = ignore_eos;
  request.sampling.logprobs = 0;
  return request;
}

// Describes a mismatch; empty: none.
std::string compare(const Answer& got, const Expected& right, bool ignore_eos) {
  const bool stops = !ignore_eos && right.first_eos;
  std::vector<std::int32_t> tokens = right.continuation;
  if (stops) tokens.resize(*right.first_eos + 1);
  if (!got.error.empty()) return got.error;
  if (got.tokens != tokens) return "other tokens";
  if (got.finish != (stops ? FinishReason::stop : FinishReason::length)) {
    return str("ended by ", name_of(got.finish));
  }
  if (got.logprobs.size() != tokens.size()) return str(got.logprobs.size(), " log-probabilities");
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const TokenLogprob& chosen = got.logprobs[i].chosen;
    if (!(std::fabs(chosen.logprob - right.logprobs[i]) <= 1e-3f) || chosen.rank != 1) {
      return str("log-probability ", i, " is ", chosen.logprob, ", not ", right.logprobs[i]);
    }
  }
  return {};
}

void check_model(const std::string& name, int ranks, int stages = 1) {
  CAPTURE(name);
  CAPTURE(ranks);
  CAPTURE(stages);
  const std::string folder = "tests/data/golden-models/" + name;
  const OpenModel model = open_model({.path = folder, .dtype = DType::f32});
  if (model.config.layers < stages) return;
  EngineOptions options;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 256;
  options.state_snapshot_tokens = 16;
  TestEngine engine(model, ranks, options, stages);
  std::vector<Request> requests;
  std::vector<std::pair<Expected, bool>> wanted;
  for (const Expected& expected : expected_of(folder)) {
    const auto length = std::ssize(expected.prompt) + std::ssize(expected.continuation);
    if (length > engine.info().max_model_len) continue;  // beyond the model's limit
    for (const bool ignore_eos : {true, false}) {
      requests.push_back(greedy(expected, ignore_eos));
      wanted.emplace_back(expected, ignore_eos);
    }
  }
  REQUIRE(!requests.empty());
  const auto check = [&](const Answers& answers) {
    for (std::size_t i = 0; i < answers.size(); ++i) {
      CAPTURE(i);
      REQUIRE(answers[i].size() == 1);
      CHECK(compare(answers[i].front(), wanted[i].first, wanted[i].second) == "");
    }
  };
  check(engine.run(requests));
  if (model.config.linear_attention.key_heads > 0 && stages == 1) {  // again, resuming from state
                                                                     // snapshots
    check(engine.run(requests, requests.size() + 1));
    CHECK(engine.client().statistics().scheduler.restored_states > 0);
  }
  engine.stop();
}

void check_models(int ranks) {
  for (const char* name : kModels) check_model(name, ranks);
}

// A Gemma 4 with per-layer inputs runs in one stage only.
void check_models_in_stages(int stages, int ranks) {
  RANKS_OR_SKIP(stages * ranks);
  for (const std::string name : kModels) {
    if (name != "gemma4-ple") check_model(name, ranks, stages);
  }
}

// Under sanitizers three ranks, and stages of two, cover the code of all other cases.
#define WITHOUT_SANITIZERS() \
  if (testing::kSanitized)   \
  SKIP_TEST("three ranks, and two stages of two, have all that others have")

TEST_CASE("every golden model continues as transformers, on one rank") {
  WITHOUT_SANITIZERS();
  RANKS_OR_SKIP(1);
  check_models(1);
}

TEST_CASE("every golden model continues as transformers, on two ranks") {
  WITHOUT_SANITIZERS();
  RANKS_OR_SKIP(2);
  check_models(2);
}

TEST_CASE("every golden model continues as transformers, on three ranks") {
  RANKS_OR_SKIP(3);
  check_models(3);
}

TEST_CASE("every golden model continues as transformers, on four ranks") {
  WITHOUT_SANITIZERS();
  RANKS_OR_SKIP(4);
  check_models(4);
}

TEST_CASE("every golden model continues as transformers, in two pipeline stages") {
  WITHOUT_SANITIZERS();
  check_models_in_stages(2, 1);
}

TEST_CASE("every golden model continues as transformers, in three pipeline stages") {
  WITHOUT_SANITIZERS();
  check_models_in_stages(3, 1);
}

TEST_CASE("every golden model continues as transformers, in two pipeline stages of two ranks") {
  check_models_in_stages(2, 2);
}

}  // namespace
}  // namespace nvllm::runtime
