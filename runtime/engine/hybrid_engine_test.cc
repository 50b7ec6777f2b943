// An engine with linear attention: prefixes are shared up to state snapshots, states are swapped
// together with blocks, and only attention layers have keys and values.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/engine/testing/kv_modes.h"
#include "runtime/memory/workspace.h"

namespace nvllm::runtime {
namespace {

constexpr const char* kHybrid = "tests/data/golden-models/qwen35-dense";

OpenModel open_hybrid() {
  return open_model({.path = kHybrid, .dtype = DType::f32});
}

// A cache with small blocks, and with snapshots as close to each other as possible.
EngineOptions with_snapshots() {
  EngineOptions options = paged();
  options.state_snapshot_tokens = options.block_size;
  return options;
}

// A request whose prefix may be shared.
Request request_of(std::vector<std::int32_t> prompt) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.sampling.max_tokens.reset();
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = 0;
  return request;
}

std::vector<std::int32_t> tokens_of(const OpenModel& model, std::int64_t count) {
  return requests_of(model, {count}).front().prompt;
}

// Runs the requests one after the other in one engine; returns how many tokens of each were cached.
// The answers must equal those of an engine without a prefix cache.
std::vector<std::int32_t> cached_tokens(const OpenModel& model, int ranks,
                                        const EngineOptions& options,
                                        const std::vector<Request>& requests) {
  const Answers right = plain_answers(model, requests, options);
  TestEngine engine(model, ranks, options);
  std::vector<std::int32_t> cached;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Answers answers = engine.run({requests[i]}, i + 1);
    CHECK(compare(answers, {right[i]}) == "");
    cached.push_back(answers.front().front().cached_tokens);
  }
  engine.stop();
  return cached;
}

TEST_CASE("an equal prompt begins behind the last full block of the first, on one to three ranks") {
  const OpenModel model = open_hybrid();
  const Request request = request_of(tokens_of(model, 40));
  for (const int ranks : {1, 2, 3}) {  // with three ranks one has no heads and no states
    CAPTURE(ranks);
    CHECK(cached_tokens(model, ranks, with_snapshots(), {request, request}) ==
          std::vector<std::int32_t>{0, 32});
  }
}

TEST_CASE("a shared system prompt: the second request leaves a snapshot behind it") {
  const OpenModel model = open_hybrid();
  const std::vector<std::int32_t> system = tokens_of(model, 35);
  std::vector<Request> requests;
  for (const std::int32_t own : {1, 2, 3, 4}) {
    std::vector<std::int32_t> prompt = system;
    prompt.insert(prompt.end(), 15, own);
    requests.push_back(request_of(prompt));
  }
  CHECK(cached_tokens(model, 1, with_snapshots(), requests) ==
        std::vector<std::int32_t>{0, 0, 32, 32});
}

TEST_CASE("the next turn of a chat begins in the answer before") {
  const OpenModel model = open_hybrid();
  Request first = request_of(tokens_of(model, 10));
  first.sampling.max_tokens = 48;
  const Answers answers = plain_answers(model, {first}, with_snapshots());
  std::vector<std::int32_t> turns = first.prompt;
  const std::vector<std::int32_t>& answer = answers.front().front().tokens;
  turns.insert(turns.end(), answer.begin(), answer.end());
  turns.insert(turns.end(), 3, 7);
  // Snapshots of generated tokens are two blocks apart.
  CHECK(cached_tokens(model, 1, with_snapshots(), {first, request_of(turns)}) ==
        std::vector<std::int32_t>{0, 32});
}

TEST_CASE("one line says how many snapshots there may be, or why there are none") {
  const OpenModel model = open_hybrid();
  const auto notes_of = [&](const EngineOptions& options, int stages = 1) {
    TestEngine engine(model, 1, options, stages);
    const EngineInfo info = engine.info();
    engine.stop();
    CHECK(info.prefix_caching == (info.state_snapshots > 0));
    return info.notes;
  };
  EngineOptions options = paged();
  options.state_snapshots = 3;
  CHECK(notes_of(options) ==
        std::vector<std::string>{"prefix caching: 3 snapshots of linear attention's states, of 57 "
                                 "KiB each, may be kept (--state-snapshots)"});
  options.state_snapshots = 0;
  CHECK(notes_of(options).empty());
  options = paged();
  options.prefix_caching = false;
  CHECK(notes_of(options).empty());
  options = layerwise(2, kChunk);
  CHECK(std::ranges::count(notes_of(options),
                           "prefix caching is off: no snapshots of linear attention's states are "
                           "taken with --kv-offload layerwise") == 1);
  CHECK(notes_of(paged(), 2) ==
        std::vector<std::string>{"prefix caching is off: no snapshots of linear attention's states "
                                 "are taken in a pipeline"});
}

TEST_CASE("snapshots that nobody can use are refused in one line") {
  EngineOptions options = paged();
  options.state_snapshots = 2;
  const OpenModel dense = open_model({.path = "tests/data/golden-models/qwen3-uneven"});
  CHECK_THROWS_WITH_AS(TestEngine(dense, 1, options),
                       doctest::Contains("--state-snapshots 2: only models with linear attention "
                                         "have states; leave it out"),
                       Error);
  options.prefix_caching = false;
  CHECK_THROWS_WITH_AS(TestEngine(open_hybrid(), 1, options),
                       doctest::Contains("--state-snapshots 2: only prefix caching has a use for "
                                         "them, and it is off; leave it out"),
                       Error);
}

TEST_CASE("keys and values in host memory, in chunks: prefixes are shared up to snapshots, too") {
  const OpenModel model = open_hybrid();
  const Request request = request_of(tokens_of(model, 40));
  EngineOptions options = with_snapshots();
  options.kv_offload = KvOffload::chunked;
  options.transfer_block = 16;
  for (const std::int64_t resident : {0, 4}) {
    options.resident_blocks = resident;
    CHECK(cached_tokens(model, 1, options, {request, request}) == std::vector<std::int32_t>{0, 32});
  }
}

TEST_CASE("a sequence that is preempted takes its states to the host, or computes them again") {
  const OpenModel model = open_hybrid();
  std::vector<Request> requests;
  for (const std::int64_t length : {20, 21, 22, 23})
    requests.push_back(request_of(tokens_of(model, length)));
  EngineOptions options = with_snapshots();
  options.block_size = options.state_snapshot_tokens = 4;
  const Answers right = plain_answers(model, requests, options);
  options.state_snapshots = 2;
  const model::Decoder decoder(model.config, {}, DType::f32);
  const auto state = static_cast<std::int64_t>(model::DecoderMemory::state_bytes(decoder, 1));
  const auto block = static_cast<std::int64_t>(decoder.block_shape(4, DType::f32).bytes());
  options.kv_cache_memory_bytes = 2 * state + (kMaxLen + 32) / 4 * block;
  for (const bool swaps : {true, false}) {
    // Half of the space is for states, but too small for one.
    options.swap_space_bytes = swaps ? std::int64_t{16} << 20 : state;
    TestEngine engine(model, 1, options);
    CHECK((engine.info().host_states > 0) == swaps);
    CHECK(compare(engine.run(requests), right) == "");
    const SchedulerStatistics statistics = engine.client().statistics().scheduler;
    CHECK(statistics.preemptions > 0);
    CHECK((statistics.swapped_states > 0) == swaps);
    CHECK((statistics.swapped_blocks > 0) == swaps);
    CHECK((statistics.recomputed_tokens > 0) == !swaps);
    engine.stop();
  }
}

TEST_CASE("only layers with attention have keys and values") {
  const OpenModel model = open_hybrid();
  TestEngine engine(model, 1, paged());
  const std::int64_t of_layer = 2 * model.config.kv_heads * model.config.head_dim * 4;
  const std::int64_t token_id = 4;
  CHECK(engine.info().kv_bytes_per_token == static_cast<std::uint64_t>(of_layer + token_id));
  engine.stop();
}

TEST_CASE("an 8-bit cache of the layers with attention answers") {
  const OpenModel model = open_hybrid();
  EngineOptions options = paged();
  options.kv_cache_dtype = KvCacheDtype::fp8_e4m3;
  const std::vector<Request> requests = requests_of(model, {1, 17, 33});
  const Answers answers = run(model, 1, options, requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    CHECK(answers[i].front().error == "");
    CHECK(std::ssize(answers[i].front().tokens) + std::ssize(requests[i].prompt) == kMaxLen);
  }
}

TEST_CASE("sparse attention is that of the layers with attention") {
  const OpenModel model = open_hybrid();
  const std::vector<Request> requests = requests_of(model, {1, 17, 33, kMaxLen - 1});
  const Answers right = run(model, 1, paged(), requests);
  // These contexts are short enough for the policies to select all tokens.
  for (const PrefillAttention prompts :
       {PrefillAttention::xattention, PrefillAttention::minference}) {
    EngineOptions options = paged();
    options.prefill_attention = prompts;
    options.decode_attention = DecodeAttention::quest;
    CHECK(compare(run(model, 1, options, requests), right) == "");
  }
}

TEST_CASE("states that do not fit are refused with the sequences that do") {
  const OpenModel model = open_hybrid();
  const model::Decoder decoder(model.config, {}, DType::f32);
  // Three layers, each with 4 heads of 32 by 32 and 3 inputs of 256 channels.
  const std::size_t one = 3 * 4 * (4 * 32 * 32 + 3 * 256);
  CHECK(model::DecoderMemory::state_bytes(decoder, 1) == one);
  CHECK(model::DecoderMemory::state_bytes(decoder, 8) == 8 * one);
  CHECK_NOTHROW(require_states(decoder, 8, 8 * one));
  CHECK_THROWS_AS(require_states(decoder, 8, 8 * one - 1), Error);
  CHECK_THROWS_WITH_AS(require_states(decoder, 8, 7 * one),
                       "the states of linear attention of 8 sequences need 456 KiB, there are 399 "
                       "KiB beside the weights; pass --max-num-seqs 3 or less",
                       Error);
  CHECK_THROWS_WITH_AS(require_states(decoder, 8, one),
                       "the states of linear attention of 8 sequences need 456 KiB, there are 57 "
                       "KiB beside the weights; free memory",
                       Error);
  // Each rank has half a group of key heads; a third rank has none.
  const model::Decoder last(model.config, {2, 3}, DType::f32);
  CHECK(model::DecoderMemory::state_bytes(last, 8) == 0);
  CHECK_NOTHROW(require_states(last, 8, 0));
}

}  // namespace
}  // namespace nvllm::runtime
