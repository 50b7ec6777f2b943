// The same tokens and log-probabilities in every mode of the cache as with blocks on the device: at lengths
// around all boundaries, up to the last token that a mode has room for, on one to three ranks.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "base/text.h"
#include "runtime/test_engine.h"
#include "testing/device_ranks.h"

namespace nvllm::runtime {
namespace {

using Answers = std::vector<std::vector<Answer>>;

constexpr const char* kModel = "tests/data/golden-models/qwen3-uneven";  // 9 heads, 3 KV heads
constexpr std::int64_t kMaxLen = 96;

OpenModel open_float32() {
  return open_model({.path = kModel, .dtype = DType::f32});
}

// Answers that take all the room there is after prompts of these lengths.
std::vector<Request> requests_of(const OpenModel& model, const std::vector<std::int64_t>& lengths) {
  std::mt19937 random(7);
  std::vector<Request> requests;
  for (const std::int64_t length : lengths) {
    Request& request = requests.emplace_back();
    for (std::int64_t i = 0; i < length; ++i) {
      request.prompt.push_back(static_cast<std::int32_t>(
          random() % static_cast<std::uint32_t>(model.config.vocab_size)));
    }
    request.sampling.temperature = 0;
    request.sampling.repetition_penalty = 1.2f;  // looks back at all tokens
    request.sampling.max_tokens.reset();
    request.sampling.ignore_eos = true;
    request.sampling.logprobs = 0;
    request.sampling.prompt_logprobs = 0;
  }
  return requests;
}

Answers run(const OpenModel& model, int ranks, const EngineOptions& options,
            const std::vector<Request>& requests) {
  TestEngine engine(model, ranks, options);
  Answers answers = engine.run(requests);
  engine.stop();
  return answers;
}

EngineOptions paged() {
  EngineOptions options;
  options.max_model_len = kMaxLen;
  options.max_num_seqs = 8;
  return options;
}

std::string compare_logprobs(const std::vector<TokenLogprobs>& got,
                             const std::vector<TokenLogprobs>& right) {
  if (got.size() != right.size()) return str(got.size(), " log-probabilities, not ", right.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::fabs(got[i].chosen.logprob - right[i].chosen.logprob) <= 1e-4f) continue;
    return str("log-probability ", i, " is ", got[i].chosen.logprob, ", not ",
               right[i].chosen.logprob);
  }
  return {};
}

// What is wrong with the first bad answer; empty: nothing.
std::string compare(const Answers& got, const Answers& right) {
  for (std::size_t i = 0; i < right.size(); ++i) {
    const Answer& mine = got[i].front();
    const Answer& theirs = right[i].front();
    const std::string name = str("request ", i, ": ");
    if (mine.error != theirs.error) return str(name, "error '", mine.error, "'");
    const auto [a, b] = std::ranges::mismatch(mine.tokens, theirs.tokens);
    if (a != mine.tokens.end() || b != theirs.tokens.end()) {
      return str(name, "other tokens from ", a - mine.tokens.begin(), " on, of ",
                 theirs.tokens.size());
    }
    if (mine.finish != theirs.finish) return str(name, "ended by ", name_of(mine.finish));
    for (const auto& what : {compare_logprobs(mine.logprobs, theirs.logprobs),
                             compare_logprobs(mine.prompt_logprobs, theirs.prompt_logprobs)}) {
      if (!what.empty()) return name + what;
    }
  }
  return {};
}

TEST_CASE(
    "contiguous: the same tokens, one sequence at a time, to the last token there is room for") {
  const OpenModel model = open_float32();
  const std::vector<Request> requests =
      requests_of(model, {1, 15, 16, 17, 63, 64, 65, kMaxLen - 2, kMaxLen - 1});
  const Answers right = run(model, 1, paged(), requests);
  for (const int ranks : {1, 2, 3}) {
    RANKS_OR_SKIP(ranks);
    CAPTURE(ranks);
    for (const std::int64_t chunk : {8192, 24}) {
      EngineOptions options;
      options.max_seq_len = kMaxLen;
      options.max_num_batched_tokens = chunk;
      TestEngine engine(model, ranks, options);
      CHECK(engine.info().kv_mode == KvMode::contiguous);
      CHECK(engine.info().max_model_len == kMaxLen);
      const Answers got = engine.run(requests);
      CHECK(compare(got, right) == "");
      CHECK(got.front().front().kv_mode == "contiguous");
      CHECK(right.front().front().kv_mode == "paged");
      const EngineStatistics statistics = engine.client().statistics();
      CHECK(statistics.kv_bytes_to_host == 0);
      CHECK(statistics.kv_bytes_to_device == 0);
      CHECK(statistics.scheduler.preemptions == 0);
      engine.stop();
    }
  }
}

TEST_CASE("contiguous: a prompt that leaves no room is refused, and the next one runs") {
  RANKS_OR_SKIP(1);
  const OpenModel model = open_float32();
  EngineOptions options;
  options.max_seq_len = kMaxLen;
  TestEngine engine(model, 1, options);
  const Answers got = engine.run(requests_of(model, {kMaxLen, kMaxLen - 1}));
  CHECK(got[0].front().error.find("prompt of 96 tokens: max_model_len is 96") == 0);
  CHECK(got[1].front().tokens.size() == 1);
  engine.stop();
}

}  // namespace
}  // namespace nvllm::runtime
