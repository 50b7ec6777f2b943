// Invariance: the bits of a request's log-probabilities, and so its tokens, do not depend on what
// else runs, how its prompt is chunked, whether its prefix is cached, whether it is swapped out or
// recomputed, or where its keys and values are stored. Random requests run on one rank: on the CPU,
// with quantized weights by --invariant batch, as on a GPU. With --invariant tp the bits do not
// depend on the number of ranks either; these may share a GPU.
#include <doctest/doctest.h>

#include <bit>
#include <cstdint>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "runtime/engine/testing/invariance_ways.h"
#include "runtime/engine/testing/random_requests.h"
#include "runtime/engine/testing/test_engine.h"
#include "runtime/model/open_model.h"
#include "testing/device_ranks.h"
#include "testing/sanitizers.h"

namespace nvllm::runtime {
namespace {

constexpr const char* kDense = "tests/data/golden-models/qwen3-uneven";  // 9 heads, 3 KV heads
// 16 experts in two of three layers, 4 for each token.
constexpr const char* kMixture = "tests/data/golden-models/qwen3moe-dense-layer";
constexpr const char* kWindowed = "tests/data/golden-models/qwen2-window";       // 16 tokens
constexpr const char* kLocalAndGlobal = "tests/data/golden-models/gemma3-text";  // likewise 16
                                                                                 // tokens
constexpr const char* kOtherHeads = "tests/data/golden-models/gemma4-dense";     // likewise 16
                                                                                 // tokens
// A tiny cache (make_tiny()) admits two such prompts, and is too small for their answers even if
// one answer is a dozen tokens behind the other, as in steps of few rows.
constexpr std::size_t kLongPrompt = kMaxModelLen / 2 + 4;

std::int64_t requests_of_a_way(bool of_ranks) {
  if (of_ranks && ranks_share_gpus()) return 8;
  if (on_gpu()) return 32;
  return testing::kSanitized ? 10 : 20;
}

std::vector<Request> random_requests(const OpenModel& model, std::uint32_t seed) {
  RandomRequests random({.vocabulary = model.config.vocab_size,
                         .max_prompt = kMaxPrompt,
                         .max_answer = kMaxAnswer,
                         .features = 0.5},
                        seed);
  std::vector<Request> requests = random.next(requests_of_a_way(model.tp_invariant));
  std::mt19937 tokens(seed);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    request.sampling.logprobs = 3;
    if (i >= 4) continue;
    // Two of the first requests fill a tiny cache before they finish.
    while (request.prompt.size() < kLongPrompt)
      request.prompt.push_back(static_cast<std::int32_t>(tokens() % model.config.vocab_size));
    request.prompt.resize(kLongPrompt);
    request.sampling.max_tokens = request.sampling.min_tokens = kMaxAnswer;
  }
  return requests;
}

std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

bool same_bits(const TokenLogprobs& a, const TokenLogprobs& b) {
  const auto same = [](const TokenLogprob& x, const TokenLogprob& y) {
    return x.token == y.token && x.rank == y.rank && bits_of(x.logprob) == bits_of(y.logprob);
  };
  return same(a.chosen, b.chosen) && std::ranges::equal(a.top, b.top, same);
}

// Describes the first difference; empty: none.
std::string difference(const Answer& got, const Answer& right) {
  if (got.error != right.error) return str("error '", got.error, "', not '", right.error, "'");
  for (std::size_t i = 0; i < std::min(got.logprobs.size(), right.logprobs.size()); ++i) {
    if (!same_bits(got.logprobs[i], right.logprobs[i]))
      return str("other log-probabilities of token ", i);
  }
  for (std::size_t i = 0; i < std::min(got.prompt_logprobs.size(), right.prompt_logprobs.size());
       ++i) {
    if (!same_bits(got.prompt_logprobs[i], right.prompt_logprobs[i]))
      return str("other log-probabilities of token ", i, " of the prompt");
  }
  const bool equal = got.tokens == right.tokens && got.finish == right.finish &&
                     got.logprobs.size() == right.logprobs.size() &&
                     got.prompt_logprobs.size() == right.prompt_logprobs.size();
  return equal ? "" : "another end";
}

// How many requests' answers differ, and the first such difference.
struct Differences {
  int count = 0;
  std::string first;
};

Differences compare(const Answers& got, const Answers& right) {
  Differences all;
  for (std::size_t i = 0; i < right.size(); ++i) {
    std::string what = got[i].size() == right[i].size() ? "" : "another number of answers";
    for (std::size_t index = 0; index < right[i].size() && what.empty(); ++index)
      what = difference(got[i][index], right[i][index]);
    if (what.empty()) continue;
    if (all.count++ == 0) all.first = str("request ", i, ": ", what);
  }
  return all;
}

// Whether the configuration took effect: with some requests there is no sequence to preempt, or few
// snapshots of states hold no prefix of theirs. Without such a condition, prefixes must be cached.
bool check_way(const OpenModel& model, const Way& way, const std::vector<Request>& requests,
               const Answers& right) {
  CAPTURE(way.name);
  TestEngine engine(model, way.ranks, way.options, way.stages);
  if (way.prompts_first) {
    std::vector<Request> prompts;
    for (const Request& request : requests) prompts.emplace_back().prompt = request.prompt;
    engine.run(prompts, 1'000'000);
  }
  const Differences found = compare(engine.run(requests), right);
  if (way.exception.empty()) {
    CHECK_MESSAGE(found.count == 0, found.count, " of ", requests.size(),
                  " requests: ", found.first);
  } else {
    std::cout << way.name << ": " << found.count << " of " << requests.size()
              << " requests have other bits, a known exception: " << way.exception << "\n";
  }
  const SchedulerStatistics statistics = engine.client().statistics().scheduler;
  if (way.loads) CHECK(engine.client().statistics().kv_bytes_to_device > 0);
  engine.stop();
  const bool took_effect = way.happened == nullptr || statistics.*way.happened > 0;
  if (way.prompts_first && took_effect) CHECK(statistics.prefix.hit_tokens > 0);
  return took_effect;
}

// Runs these configurations with new requests; returns those that did not take effect.
std::vector<Way> check_ways(const OpenModel& model, const std::vector<Way>& ways,
                            std::int64_t rows) {
  const std::uint32_t seed = std::random_device()();
  std::cout << name_of(model.dtype) << ", seed " << seed << "\n";
  const std::vector<Request> requests = random_requests(model, seed);
  const Answers right = plain_answers(model, requests, usual_options(model, rows));
  for (const std::vector<Answer>& answers : right) {
    for (const Answer& answer : answers) CHECK(answer.error == "");
  }
  std::vector<Way> left;
  for (const Way& way : ways) {
    if (!check_way(model, way, requests, right)) left.push_back(way);
  }
  return left;
}

void check_until_taken(const OpenModel& model, const std::vector<Way>& ways, std::int64_t rows) {
  std::vector<Way> left = check_ways(model, ways, rows);
  for (int more = 0; more < 3 && !left.empty(); ++more) left = check_ways(model, left, rows);
  for (const Way& way : left) FAIL_CHECK("not taken: ", way.name);
}

void check_all_ways(const OpenModel& model, std::int64_t rows) {
  check_until_taken(model, all_ways(model, rows), rows);
}

// With --invariant tp: the answers must equal those of one rank.
void check_all_ranks(OpenModel model, std::int64_t rows) {
  model.tp_invariant = true;
  check_until_taken(model, ways_with_ranks(model, rows), rows);
}

// The same in bfloat16 and, unless ranks share a GPU, in float32.
void check_all_ranks(const char* path, std::int64_t rows = kManyRows) {
  check_all_ranks(open_model({.path = path, .dtype = DType::bf16}), rows);
  if (ranks_share_gpus()) return;
  check_all_ranks(open_model({.path = path, .dtype = DType::f32}), rows);
}

// Skipped under sanitizers for some model families: other families' cases cover the engine's
// configurations, and golden-model tests cover these families' layers.
#define WITHOUT_SANITIZERS() \
  if (testing::kSanitized) SKIP_TEST("a sanitizer has seen its parts elsewhere")

// In float32 and in bfloat16.
void check_all_ways(const char* path, std::int64_t rows = kManyRows) {
  check_all_ways(open_model({.path = path, .dtype = DType::f32}), rows);
  if (testing::kSanitized) return;  // the engine's memory accesses are the same
  check_all_ways(open_model({.path = path, .dtype = DType::bf16}), rows);
}

// With random bfloat16 weights of these sizes.
void check_all_ways(const char* path, const char* sizes) {
  check_all_ways(
      open_model(
          {.path = path, .format = LoadFormat::dummy, .overrides = sizes, .dtype = DType::bf16}),
      kManyRows);
}

TEST_CASE("a dense model: the same bits, whichever way") {
  RANKS_OR_SKIP(1);
  check_all_ways(kDense);
}

TEST_CASE("a mixture of experts: the same bits, whichever way") {
  WITHOUT_SANITIZERS();
  RANKS_OR_SKIP(1);
  check_all_ways(kMixture);
}

TEST_CASE("layers with windows: the same bits, whichever way") {
  WITHOUT_SANITIZERS();
  RANKS_OR_SKIP(1);
  check_all_ways(kWindowed);
}

TEST_CASE("layers with and without windows, results normed before they are added: the same bits") {
  RANKS_OR_SKIP(1);
  check_all_ways(kLocalAndGlobal);
}

TEST_CASE("linear attention: the same bits, whichever way") {
  WITHOUT_SANITIZERS();
  RANKS_OR_SKIP(1);
  check_all_ways("tests/data/golden-models/qwen35-dense");
}

TEST_CASE("linear attention, experts and a shared expert: the same bits, whichever way") {
  RANKS_OR_SKIP(1);
  check_all_ways("tests/data/golden-models/qwen3next");
}

TEST_CASE("sizes of large models: the same bits, whichever way") {
  if (!on_gpu()) SKIP_TEST("takes a CPU too long; it has the same kernels for all sizes");
  RANKS_OR_SKIP(1);
  check_all_ways(kDense, R"({"hidden_size": 1024, "intermediate_size": 3072, "head_dim": 128,
      "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 40000})");
  check_all_ways(kDense, R"({"hidden_size": 2560, "intermediate_size": 9728, "head_dim": 64,
      "num_attention_heads": 32, "num_key_value_heads": 2, "vocab_size": 151936})");
  check_all_ways(kMixture, R"({"hidden_size": 1024, "moe_intermediate_size": 768,
      "intermediate_size": 2048, "head_dim": 128, "num_attention_heads": 16,
      "num_key_value_heads": 4, "num_experts": 64, "num_experts_per_tok": 8})");
  // Heads of 256 elements in layers with a window, and of 512 in the others.
  check_all_ways(kOtherHeads, R"({"hidden_size": 1024, "intermediate_size": 3072, "head_dim": 256,
      "global_head_dim": 512, "num_attention_heads": 16, "num_key_value_heads": 4,
      "num_global_key_value_heads": 2, "sliding_window": 64, "vocab_size": 40000})");
}

TEST_CASE("layers that differ in their heads: the same bits, whichever way") {
  WITHOUT_SANITIZERS();
  RANKS_OR_SKIP(1);
  check_all_ways(kOtherHeads);
}

TEST_CASE("inputs of layers, and layers that read others' keys and values: the same bits") {
  RANKS_OR_SKIP(1);
  check_all_ways("tests/data/golden-models/gemma4-ple");
}

TEST_CASE("experts beside an MLP: the same bits, whichever way") {
  WITHOUT_SANITIZERS();
  RANKS_OR_SKIP(1);
  check_all_ways("tests/data/golden-models/gemma4-moe");
}

TEST_CASE("weights in fp8: the same bits, whichever way") {
  WITHOUT_SANITIZERS();
  RANKS_OR_SKIP(1);
  check_all_ways("tests/data/golden-models/qwen3-fp8-block");
}

TEST_CASE("weights in int4: the same bits, whichever way") {
  WITHOUT_SANITIZERS();
  RANKS_OR_SKIP(1);
  check_all_ways("tests/data/golden-models/qwen3-awq");
}

TEST_CASE("weights in int4: the same bits on CPUs by default while steps have few rows") {
  WITHOUT_SANITIZERS();
  if (on_gpu()) SKIP_TEST("on GPUs nothing is invariant by default");
  check_all_ways("tests/data/golden-models/qwen3-awq", kFewRows);
}

TEST_CASE("experts in mxfp4: the same bits, whichever way") {
  WITHOUT_SANITIZERS();
  RANKS_OR_SKIP(1);
  check_all_ways("tests/data/golden-models/gptoss-mxfp4");
}

TEST_CASE("attention sinks and experts with biases: the same bits, whichever way") {
  WITHOUT_SANITIZERS();
  RANKS_OR_SKIP(1);
  check_all_ways("tests/data/golden-models/gptoss-bf16");
}

TEST_CASE("a dense model: the same bits with any number of ranks") {
  WITHOUT_SANITIZERS();
  RANKS_OR_SKIP(1);
  check_all_ranks(kDense);
}

TEST_CASE("a mixture of experts: the same bits with any number of ranks") {
  WITHOUT_SANITIZERS();
  RANKS_OR_SKIP(1);
  check_all_ranks(kMixture);
}

TEST_CASE("results normed before they are added: the same bits with any number of ranks") {
  WITHOUT_SANITIZERS();
  RANKS_OR_SKIP(1);
  check_all_ranks(kLocalAndGlobal);
}

TEST_CASE("linear attention and a shared expert: the same bits with any number of ranks") {
  WITHOUT_SANITIZERS();
  RANKS_OR_SKIP(1);
  check_all_ranks("tests/data/golden-models/qwen3next");
}

TEST_CASE("inputs of layers: the same bits with any number of ranks") {
  WITHOUT_SANITIZERS();
  RANKS_OR_SKIP(1);
  check_all_ranks("tests/data/golden-models/gemma4-ple");
}

TEST_CASE("weights in fp8: the same bits with any number of ranks") {
  RANKS_OR_SKIP(1);
  WITHOUT_SANITIZERS();
  check_all_ranks("tests/data/golden-models/qwen3-fp8-block");
}

// Segments hold 128 inputs in the MLP, whose weights stay quantized, and fewer in attention.
TEST_CASE("weights in int4: the same bits with any number of ranks") {
  RANKS_OR_SKIP(1);
  check_all_ranks(open_model({.path = "tests/data/golden-models/qwen3-awq",
                              .format = LoadFormat::dummy,
                              .overrides = R"({"intermediate_size": 1024})",
                              .dtype = DType::bf16}),
                  kManyRows);
}

TEST_CASE("experts in mxfp4: the same bits with any number of ranks") {
  RANKS_OR_SKIP(1);
  WITHOUT_SANITIZERS();
  check_all_ranks("tests/data/golden-models/gptoss-mxfp4");
}

}  // namespace
}  // namespace nvllm::runtime
