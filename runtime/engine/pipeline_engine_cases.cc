// An engine in pipeline stages: the options that it refuses, how its steps are divided, and its
// cache. That its tokens are those of one rank is in golden_engine_cases.cc and
// equivalence_cases.cc.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/engine/testing/test_engine.h"
#include "testing/device_ranks.h"

namespace nvllm::runtime {
namespace {

constexpr const char* kModel = "tests/data/golden-models/qwen3-gqa-tied";  // 3 layers

OpenModel small_model(const std::string& overrides = "") {
  return open_model({.path = kModel, .overrides = overrides, .dtype = DType::f32});
}

EngineOptions small_options() {
  EngineOptions options;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 64;
  options.kv_cache_memory_bytes = std::int64_t{1} << 20;
  return options;
}

Request request_of(std::size_t prompt, std::int32_t max_tokens, std::int32_t first = 3) {
  Request request;
  for (std::size_t i = 0; i < prompt; ++i) {
    request.prompt.push_back(static_cast<std::int32_t>((7 * i) % 500) + first);
  }
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  return request;
}

// The error that these options yield in two stages.
template <typename Change>
std::string refusal(const OpenModel& model, const Change& change) {
  EngineOptions options = small_options();
  change(options);
  try {
    TestEngine(model, 1, options, 2);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("what cannot go with pipeline stages is refused in one line, with the fix") {
  RANKS_OR_SKIP(2);
  const OpenModel model = small_model();
  for (const KvOffload offload : {KvOffload::chunked, KvOffload::layerwise, KvOffload::automatic}) {
    const std::string why = refusal(model, [&](EngineOptions& o) { o.kv_offload = offload; });
    CHECK_MESSAGE(why.ends_with("--kv-offload: not with pipeline stages, and --pp is 2; pass "
                                "--kv-offload off, or --pp 1"),
                  why);
  }
  std::string why =
      refusal(model, [](EngineOptions& o) { o.prefill_attention = PrefillAttention::xattention; });
  CHECK_MESSAGE(why.ends_with("pass --prefill-attention full, or --pp 1"), why);
  why = refusal(model, [](EngineOptions& o) { o.decode_attention = DecodeAttention::quest; });
  CHECK_MESSAGE(why.ends_with("pass --decode-attention full, or --pp 1"), why);
}

TEST_CASE("sequences that decode are divided among the stages") {
  RANKS_OR_SKIP(3);
  const OpenModel model = small_model();
  const auto steps_of = [&](int stages) {
    TestEngine engine(model, 1, small_options(), stages);
    std::vector<Request> requests;
    for (std::int32_t i = 0; i < 6; ++i) requests.push_back(request_of(4, 40, 3 + i));
    engine.run(requests);
    const std::uint64_t steps = engine.client().statistics().scheduler.steps;
    engine.stop();
    return steps;
  };
  CHECK(steps_of(1) < 60);
  CHECK(steps_of(2) >= 80);
  CHECK(steps_of(3) >= 120);
}

TEST_CASE("a stage's cache has its own layers alone, and the largest one decides how many blocks") {
  RANKS_OR_SKIP(3);
  const OpenModel model = small_model();
  const auto blocks_of = [&](int stages) {
    EngineOptions options = small_options();
    options.kv_cache_memory_bytes = std::int64_t{256} << 10;
    TestEngine engine(model, 1, options, stages);
    const std::int64_t blocks = engine.info().blocks;
    engine.stop();
    return static_cast<double>(blocks);
  };
  const double whole = blocks_of(1);
  CHECK(blocks_of(2) / whole == doctest::Approx(3.0 / 2).epsilon(0.05));  // the stages have 2
                                                                          // layers and 1
  CHECK(blocks_of(3) / whole == doctest::Approx(3.0).epsilon(0.05));
}

TEST_CASE("log-probabilities of a long prompt come back in pieces") {
  RANKS_OR_SKIP(3);
  const OpenModel model = small_model("{\"max_position_embeddings\": 2048}");
  Request request = request_of(1000, 2);
  request.sampling.prompt_logprobs = 20;
  TestEngine engine(model, 1, small_options(), 3);
  const Answer answer = engine.run({request})[0][0];
  CHECK(answer.tokens.size() == 2);
  REQUIRE(answer.prompt_logprobs.size() == 999);
  for (std::size_t i = 0; i < answer.prompt_logprobs.size(); ++i) {
    REQUIRE(answer.prompt_logprobs[i].chosen.token == request.prompt[i + 1]);
    REQUIRE(answer.prompt_logprobs[i].top.size() == 20);
  }
  engine.stop();
}

TEST_CASE("a pipeline that is told to stop in the middle of its work ends in order") {
  RANKS_OR_SKIP(4);
  const OpenModel model = small_model("{\"max_position_embeddings\": 4096}");
  TestEngine engine(model, 2, small_options(), 2);
  for (std::uint64_t id = 1; id <= 8; ++id) engine.client().submit(id, request_of(20, 300));
  TestEngine::Book book;
  while (book.empty()) engine.poll_into(book);
  engine.stop();
}

TEST_CASE("aborted requests leave nothing behind in a pipeline") {
  RANKS_OR_SKIP(3);
  const OpenModel model = small_model("{\"max_position_embeddings\": 4096}");
  TestEngine engine(model, 1, small_options(), 3);
  EngineClient& client = engine.client();
  for (std::uint64_t id = 1; id <= 12; ++id) client.submit(id, request_of(20, 300));
  TestEngine::Book book;
  while (book[1].empty() || book[1][0].tokens.empty()) engine.poll_into(book);
  for (std::uint64_t id = 1; id <= 12; ++id) client.abort(id);
  while (client.unfinished() > 0) engine.poll_into(book);
  for (std::uint64_t id = 1; id <= 12; ++id) CHECK(book[id][0].finish == FinishReason::abort);
  const SchedulerStatistics left = client.statistics().scheduler;
  CHECK(left.running + left.waiting == 0);
  CHECK(left.free_blocks == left.total_blocks);
  engine.stop();
}

}  // namespace
}  // namespace nvllm::runtime
