// Models in which some layers have a window, and whose cache has a group of blocks for these
// layers: the same tokens as in a contiguous cache, which frees nothing, in caches that would be
// too small if layers with a window kept all tokens.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kvcache/window_blocks.h"
#include "runtime/engine/testing/kv_modes.h"
#include "testing/device_ranks.h"
#include "testing/sanitizers.h"

namespace nvllm::runtime {
namespace {

// Windows of 16 tokens in two of three layers, in six of seven, and in every other one, with sinks.
constexpr const char* kModels[] = {"tests/data/golden-models/qwen2-window",
                                   "tests/data/golden-models/gemma3-text",
                                   "tests/data/golden-models/gptoss-bf16"};
constexpr std::int64_t kWindow = 16, kBlock = 4, kLong = 320;

OpenModel open(const char* path) {
  OpenModel model = open_model({.path = path, .dtype = DType::f32});
  REQUIRE(model.config.window_group() == kWindow);
  return model;
}

Answers right_answers(const OpenModel& model, const std::vector<Request>& requests) {
  EngineOptions contiguous;
  contiguous.max_seq_len = kLong;
  return run(model, 1, contiguous, requests);
}

// Bytes per token in one layer.
std::int64_t layer_token_bytes(const OpenModel& model) {
  return 2 * model.config.kv_heads * model.config.head_dim * std::int64_t{sizeof(float)};
}
std::int64_t layers_with_all_tokens(const OpenModel& model) {
  return std::ranges::count(model.config.windows, 0);
}

std::int64_t block_bytes(const OpenModel& model, std::int64_t layers) {
  return kBlock * (layers * layer_token_bytes(model) + std::int64_t{sizeof(std::int32_t)});
}

// Holds little more than one of the longest sequences, with as many bytes for windows.
EngineOptions tiny(const OpenModel& model) {
  const std::int64_t all = layers_with_all_tokens(model);
  const std::int64_t window_block = block_bytes(model, model.config.layers - all);
  const std::int64_t bytes = (kLong / kBlock + 12) * block_bytes(model, all);
  EngineOptions options;
  options.max_model_len = kLong;
  options.max_num_seqs = 8;
  options.block_size = kBlock;
  options.max_num_batched_tokens = 24;
  options.kv_cache_memory_bytes = bytes + bytes / window_block * window_block;
  return options;
}

std::vector<Request> mixed_requests(const OpenModel& model) {
  std::vector<Request> requests = requests_of(model, {1, 15, 16, 17, 33, 64, 90, 130, 64});
  requests.back() = requests[5];
  for (std::size_t i = 0; i < requests.size(); ++i) {
    // Only prompts without log-probabilities may start with a cached prefix.
    if (i >= 4) requests[i].sampling.prompt_logprobs.reset();
  }
  return requests;
}

TEST_CASE("tiny caches with a group of windows: the same tokens, swapped, recomputed, in chunks") {
  RANKS_OR_SKIP(1);
  for (const char* path : kModels) {
    CAPTURE(std::string(path));
    const OpenModel model = open(path);
    const std::vector<Request> requests = mixed_requests(model);
    const Answers right = right_answers(model, requests);
    for (const Preemption preemption : {Preemption::swap, Preemption::recompute}) {
      for (const std::int64_t rows : {9, 200}) {
        for (const int ranks : {1, 2}) {
          if (!testing::why_no_ranks(ranks).empty()) continue;
          if (testing::kSanitized && (rows == 9) != (ranks == 2)) continue;
          CAPTURE(preemption == Preemption::swap);
          CAPTURE(rows);
          CAPTURE(ranks);
          EngineOptions options = tiny(model);
          options.preemption = preemption;
          options.max_num_batched_tokens = rows;
          TestEngine engine(model, ranks, options);
          REQUIRE(engine.info().window_blocks >= kvcache::window_blocks(kWindow, kBlock));
          if (ranks == 1) CHECK(engine.info().blocks * kBlock < 2 * kLong);
          CHECK(compare(engine.run(requests), right) == "");
          const SchedulerStatistics statistics = engine.client().statistics().scheduler;
          CHECK(statistics.free_blocks == statistics.total_blocks);
          CHECK(statistics.total_window_blocks == engine.info().window_blocks);
          CHECK(statistics.free_window_blocks == statistics.total_window_blocks);
          // Each of two ranks may have half of the heads, so twice as many blocks fit.
          if (ranks == 1) CHECK(statistics.preemptions > 0);
          if (ranks == 1)
            CHECK((statistics.swapped_blocks > 0) == (preemption == Preemption::swap));
          engine.stop();
        }
      }
    }
  }
}

TEST_CASE("a sequence runs in a cache that could not hold it if all layers kept all tokens") {
  RANKS_OR_SKIP(1);
  for (const char* path : kModels) {
    CAPTURE(std::string(path));
    const OpenModel model = open(path);
    const std::vector<Request> requests = requests_of(model, {290, 20});
    const Answers right = right_answers(model, requests);
    const std::int64_t all = layers_with_all_tokens(model);
    EngineOptions options = tiny(model);
    options.block_size = 16;
    // The longest sequence in layers that keep all tokens, two windows' blocks, and the tokens'
    // ids.
    const std::int64_t ids = (kLong + 32) * std::int64_t{sizeof(std::int32_t)};
    options.kv_cache_memory_bytes =
        (kLong * all + 32 * (model.config.layers - all)) * layer_token_bytes(model) + ids;
    TestEngine engine(model, 1, options);
    CHECK(engine.info().blocks == kLong / 16);
    CHECK(engine.info().window_blocks == 2);
    CHECK(compare(engine.run(requests), right) == "");
    engine.stop();
  }
}

TEST_CASE("--kv-offload auto is layer-wise where layers with windows cannot be chunked") {
  RANKS_OR_SKIP(1);
  const OpenModel model = open(kModels[0]);
  const std::vector<Request> requests = requests_of(model, {290, 20});
  const Answers right = right_answers(model, requests);
  EngineOptions options = tiny(model);
  options.kv_offload = KvOffload::automatic;
  options.kv_offloading_bytes = std::int64_t{64} << 20;
  options.transfer_block = 16;
  options.kv_buffers = 2;
  // Half of the sequences in layers that keep all tokens.
  options.kv_cache_memory_bytes =
      options.max_num_seqs / 2 * kLong * layers_with_all_tokens(model) * layer_token_bytes(model);
  TestEngine engine(model, 1, options);
  CHECK(engine.info().kv_mode == KvMode::layerwise);
  CHECK(compare(engine.run(requests), right) == "");
  engine.stop();
}

TEST_CASE("prompts begin with cached prefixes, many at a time, and go on with the same tokens") {
  RANKS_OR_SKIP(1);
  for (const char* path : kModels) {
    CAPTURE(std::string(path));
    const OpenModel model = open(path);
    // One shared prefix of 120 tokens, and different suffixes.
    std::vector<Request> requests = requests_of(model, {120, 1, 2, 3, 4, 5, 6});
    for (Request& request : requests) {
      if (&request != &requests[0]) {
        request.prompt.insert(request.prompt.begin(), requests[0].prompt.begin(),
                              requests[0].prompt.end());
      }
      request.sampling.prompt_logprobs.reset();
    }
    const Answers right = right_answers(model, requests);
    EngineOptions options;
    options.max_model_len = kLong;
    options.max_num_seqs = 8;
    options.block_size = kBlock;
    options.max_num_batched_tokens = 64;
    TestEngine engine(model, 1, options);
    const std::vector<Request> first(requests.begin(), requests.begin() + 1);
    CHECK(compare(engine.run(first), {right[0]}) == "");
    const auto hits = [&] { return engine.client().statistics().scheduler.prefix.hit_tokens; };
    CHECK(hits() == 0);
    CHECK(compare(engine.run(requests, 100), right) == "");
    CHECK(hits() == 116 + 6 * 120);
    engine.stop();
  }
}

}  // namespace
}  // namespace nvllm::runtime
