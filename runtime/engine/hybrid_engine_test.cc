// What an engine is with linear attention: no prefixes are shared, nothing is swapped, only layers
// with attention have keys and values, and states have their place.
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

TEST_CASE("prefixes are not shared, and one line says so") {
  const OpenModel model = open_hybrid();
  std::vector<Request> requests = requests_of(model, {40});
  requests.front().sampling.prompt_logprobs.reset();  // which would forbid it, too
  TestEngine engine(model, 1, paged());
  const std::vector<std::string>& notes = engine.info().notes;
  CHECK(std::ranges::count(
            notes,
            "prefix caching is off: linear attention keeps a state of each sequence's end") == 1);
  const Answers first = engine.run(requests), second = engine.run(requests, 2);
  CHECK(compare(second, first) == "");
  CHECK(second.front().front().cached_tokens == 0);
  CHECK(engine.client().statistics().scheduler.prefix.hit_tokens == 0);
  engine.stop();

  EngineOptions options = paged();
  options.prefix_caching = false;
  TestEngine without(model, 1, options);
  CHECK(without.info().notes.empty());
  without.stop();
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
  // These contexts are within what they select, so all of it is attended to.
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
  // Of three layers: 4 heads of 32 by 32, and 3 inputs of 256 channels.
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
  // Half a group of key heads each; a third rank has none.
  const model::Decoder last(model.config, {2, 3}, DType::f32);
  CHECK(model::DecoderMemory::state_bytes(last, 8) == 0);
  CHECK_NOTHROW(require_states(last, 8, 0));
}

}  // namespace
}  // namespace nvllm::runtime
