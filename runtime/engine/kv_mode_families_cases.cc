// Mixtures of experts, linear attention, windows and sinks in the modes of the cache: the same
// tokens as with blocks on the device, and a one-line error from modes that do not support them.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "runtime/engine/testing/kv_modes.h"
#include "testing/device_ranks.h"

namespace nvllm::runtime {
namespace {

constexpr const char* kDense = "tests/data/golden-models/qwen3-gqa-tied";
constexpr const char* kMixture = "tests/data/golden-models/qwen3moe-dense-layer";
constexpr const char* kHybrid = "tests/data/golden-models/qwen35-dense";
constexpr const char* kWindowed = "tests/data/golden-models/qwen2-window";  // 16 tokens
// Windows of 16 tokens in six of seven layers.
constexpr const char* kLocalAndGlobal = "tests/data/golden-models/gemma3-text";
// Windows of 16 tokens in every other layer, and sinks.
constexpr const char* kSinks = "tests/data/golden-models/gptoss-bf16";
// Windows of 16 tokens, and other heads in layers without a window.
constexpr const char* kOtherHeads = "tests/data/golden-models/gemma4-dense";
constexpr const char* kBesideMlp = "tests/data/golden-models/gemma4-moe";
constexpr const char* kSharedKv = "tests/data/golden-models/gemma4-ple";

// Checks for the same tokens as in a paged cache, on one rank.
void check_modes(const char* path, const std::vector<EngineOptions>& modes) {
  const OpenModel model = open_model({.path = path, .dtype = DType::f32});
  const std::vector<Request> requests = requests_of(model, {1, 16, 17, 33, 47, kMaxLen - 1});
  const Answers right = run(model, 1, paged(), requests);
  for (const EngineOptions& options : modes) {
    for (const int ranks : {1, 3}) {
      if (!testing::why_no_ranks(ranks).empty()) continue;
      CAPTURE(ranks);
      TestEngine engine(model, ranks, options);
      CAPTURE(name_of(engine.info().kv_mode));
      CHECK(compare(engine.run(requests), right) == "");
      engine.stop();
    }
  }
}

void check_all_modes(const char* path) {
  EngineOptions contiguous;
  contiguous.max_seq_len = kMaxLen;
  EngineOptions chunked = layerwise(2, kChunk);
  chunked.kv_offload = KvOffload::chunked;
  EngineOptions hybrid = chunked;
  hybrid.resident_blocks = 6;
  EngineOptions by_host = chunked;
  by_host.host_attention = 0.5;
  by_host.host_threads = 2;
  check_modes(path, {contiguous, layerwise(3, kChunk), chunked, hybrid, by_host});
}

TEST_CASE("a mixture of experts gives the same tokens in every mode") {
  RANKS_OR_SKIP(1);
  check_all_modes(kMixture);
}

TEST_CASE("linear attention gives the same tokens in every mode") {
  RANKS_OR_SKIP(1);
  check_all_modes(kHybrid);
}

std::vector<EngineOptions> modes_on_the_device() {
  EngineOptions contiguous;
  contiguous.max_seq_len = kMaxLen;
  contiguous.max_num_batched_tokens = kChunk;
  EngineOptions in_chunks = paged();
  in_chunks.max_num_batched_tokens = 11;
  return {contiguous, in_chunks};
}

void check_modes_with_windows(const char* path) {
  std::vector<EngineOptions> modes = modes_on_the_device();
  modes.push_back(layerwise(3, kChunk));
  check_modes(path, modes);
}

TEST_CASE("layers with windows give the same tokens in every mode that has them") {
  RANKS_OR_SKIP(1);
  for (const char* path : {kWindowed, kLocalAndGlobal, kSinks}) {
    CAPTURE(path);
    check_modes_with_windows(path);
  }
}

TEST_CASE("blocks before the windows of all layers go to other sequences, which changes no token") {
  RANKS_OR_SKIP(1);
  constexpr std::int64_t kLong = 160, kBlocks = 16;
  const OpenModel model = open_model(
      {.path = kWindowed, .overrides = R"({"max_window_layers": 0})", .dtype = DType::f32});
  REQUIRE(model.config.windows == std::vector<std::int64_t>(3, 16));
  std::vector<Request> requests = requests_of(model, {1, 16, 17, 33, 47, 90, 130, 90});
  requests.back() = requests[5];
  for (std::size_t i = 0; i < requests.size(); ++i) {
    // Penalties need all tokens, so sequences that have some keep their blocks.
    if (i % 4 != 3) requests[i].sampling.repetition_penalty = 1;
    // Only prompts without log-probabilities may start with a cached prefix.
    if (i >= 4) requests[i].sampling.prompt_logprobs.reset();
  }
  EngineOptions contiguous;  // a contiguous cache frees nothing
  contiguous.max_seq_len = kLong;
  const Answers right = run(model, 1, contiguous, requests);
  EngineOptions options = paged();
  options.max_model_len = kLong;
  options.kv_cache_memory_bytes = kBlocks * 16 * model.config.layers * 2 * model.config.kv_heads *
                                  model.config.head_dim * std::int64_t{sizeof(float)};
  for (const Preemption preemption : {Preemption::swap, Preemption::recompute}) {
    for (const std::int64_t rows : {11, 200}) {
      CAPTURE(rows);
      options.preemption = preemption;
      options.max_num_batched_tokens = rows;
      TestEngine engine(model, 1, options);
      REQUIRE(engine.info().blocks <= kBlocks);
      CHECK(compare(engine.run(requests), right) == "");
      const SchedulerStatistics statistics = engine.client().statistics().scheduler;
      CHECK(statistics.free_blocks == engine.info().blocks);
      // Two answers would fill all blocks if none were freed.
      CHECK(statistics.prefix.evicted_blocks > 0);
      engine.stop();
    }
  }
}

TEST_CASE("layers that differ in their heads give the same tokens in every mode that has them") {
  RANKS_OR_SKIP(1);
  for (const char* path : {kOtherHeads, kBesideMlp}) {
    CAPTURE(path);
    check_modes_with_windows(path);
  }
  check_modes(kSharedKv, modes_on_the_device());
}

// Modes chunk prompts differently. On GPUs a row's float32 result then differs in its last bits,
// and a key or value halfway between two 8-bit numbers is rounded the other way, by up to an eighth
// of its value: log-probabilities differ by some thousandths. So on GPUs the test compares
// invariant results.
TEST_CASE("an 8-bit cache of layers that differ in their heads: the same tokens in every mode") {
  RANKS_OR_SKIP(1);
  const bool gpu = testing::device_under_test() == DeviceKind::cuda;
  for (const char* path : {kOtherHeads, kBesideMlp, kSharedKv}) {
    CAPTURE(path);
    const OpenModel model = open_model({.path = path, .dtype = DType::f32});
    const std::vector<Request> requests = requests_of(model, {1, 16, 17, 33, 47, kMaxLen - 1});
    const auto in_8_bits = [&](EngineOptions options) {
      options.kv_cache_dtype = KvCacheDtype::fp8_e4m3;
      if (gpu) options.invariance = Invariance::batch;
      return options;
    };
    const Answers exact = run(model, 1, paged(), requests);
    const Answers right = run(model, 1, in_8_bits(paged()), requests);
    CHECK(compare(right, exact) != "");
    std::vector<EngineOptions> modes = modes_on_the_device();
    if (model.config.kv_shared_layers == 0) modes.push_back(layerwise(3, kChunk));
    for (const EngineOptions& options : modes) {
      CHECK(compare(run(model, 1, in_8_bits(options), requests), right) == "");
    }
  }
}

// The error text; empty: not refused.
std::string refusal_of(const OpenModel& model, const EngineOptions& options) {
  try {
    TestEngine(model, 1, options).stop();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("modes that know no layers that differ are refused, in one line, with any window") {
  RANKS_OR_SKIP(1);
  // A window as long as the context has no effect.
  const OpenModel model = open_model(
      {.path = kSharedKv, .overrides = R"({"sliding_window": 4096})", .dtype = DType::f32});
  REQUIRE(model.config.windows.empty());
  EngineOptions options = paged();
  options.prefill_attention = PrefillAttention::xattention;
  CHECK(refusal_of(model, options) ==
        "--prefill-attention: not with layers that differ in their heads, as a "
        "Gemma4ForConditionalGeneration has; pass --prefill-attention full");
  options = paged();
  options.decode_attention = DecodeAttention::quest;
  CHECK(refusal_of(model, options) ==
        "--decode-attention quest: not with layers that differ in their heads, as a "
        "Gemma4ForConditionalGeneration has; pass --decode-attention full");
  options = layerwise(2, kChunk);
  CHECK(refusal_of(model, options) ==
        "--kv-offload layerwise: not with layers that read the keys and values of others, as a "
        "Gemma4ForConditionalGeneration has; pass --kv-offload off");
  options.kv_offload = KvOffload::chunked;
  CHECK(refusal_of(model, options) ==
        "--kv-offload chunked: not with layers that differ in their heads, as a "
        "Gemma4ForConditionalGeneration has; pass --kv-offload off");
}

TEST_CASE(
    "sparse attention has no heads of more than 256 elements on GPUs, and says so in one line") {
  RANKS_OR_SKIP(1);
  const bool gpu = testing::device_under_test() == DeviceKind::cuda;
  const OpenModel model = open_model({.path = kDense,
                                      .format = LoadFormat::dummy,
                                      .overrides = R"({"head_dim": 320})",
                                      .dtype = DType::f32});
  CHECK(refusal_of(model, paged()) == "");
  EngineOptions options = paged();
  options.prefill_attention = PrefillAttention::xattention;
  CHECK(refusal_of(model, options) ==
        (gpu ? "--prefill-attention: not with heads of 320 elements on GPUs; pass "
               "--prefill-attention full, or --device cpu"
             : ""));
  options = paged();
  options.decode_attention = DecodeAttention::quest;
  CHECK(refusal_of(model, options) ==
        (gpu ? "--decode-attention: not with heads of 320 elements on GPUs; pass "
               "--decode-attention full, or --device cpu"
             : ""));
}

TEST_CASE("modes that know no windows are refused, in one line") {
  RANKS_OR_SKIP(1);
  const OpenModel model = open_model({.path = kWindowed, .dtype = DType::f32});
  const auto refusal = [&](const EngineOptions& options) { return refusal_of(model, options); };
  EngineOptions options = paged();
  options.prefill_attention = PrefillAttention::xattention;
  CHECK(refusal(options) ==
        "--prefill-attention: not with layers that attend to a window, of 16 tokens in this model; "
        "pass --prefill-attention full");
  options = paged();
  options.decode_attention = DecodeAttention::quest;
  CHECK(refusal(options) ==
        "--decode-attention quest: not with layers that attend to a window, of 16 tokens in this "
        "model; pass --decode-attention full");
  options = layerwise(2, kChunk);
  options.kv_offload = KvOffload::chunked;
  CHECK(refusal(options) ==
        "--kv-offload chunked: not with layers that attend to a window, of 16 tokens in this "
        "model; pass --kv-offload layerwise, or off");
}

TEST_CASE("modes that know no attention sinks are refused, in one line") {
  RANKS_OR_SKIP(1);
  // A window as long as the context has no effect.
  const OpenModel model =
      open_model({.path = kSinks, .overrides = R"({"sliding_window": 4096})", .dtype = DType::f32});
  REQUIRE(model.config.windows.empty());
  EngineOptions options = paged();
  options.decode_attention = DecodeAttention::quest;
  CHECK_THROWS_WITH_AS(TestEngine(model, 1, options).stop(),
                       "--decode-attention quest: not with attention sinks; pass "
                       "--decode-attention full",
                       Error);
}

}  // namespace
}  // namespace nvllm::runtime
