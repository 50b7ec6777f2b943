// Sparse attention through whole engines: if the budgets cover all tokens, the same tokens as full
// attention, on one to three ranks, in every mode; for long prompts, a policy's selection does not
// depend on the mode.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/engine/testing/test_engine.h"
#include "runtime/runner/runner_cache.h"
#include "testing/device_ranks.h"
#include "testing/sanitizers.h"

namespace nvllm::runtime {
namespace {

constexpr const char* kModel = "tests/data/golden-models/qwen3-uneven";  // 9 heads, 3 KV heads

std::vector<Request> requests_of(const OpenModel& model) {
  std::mt19937 random(7);
  std::vector<Request> requests;
  for (const std::int64_t length : {5, 16, 40, 33}) {
    Request& request = requests.emplace_back();
    for (std::int64_t i = 0; i < length; ++i) {
      request.prompt.push_back(static_cast<std::int32_t>(
          random() % static_cast<std::uint32_t>(model.config.vocab_size)));
    }
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 30;
    request.sampling.ignore_eos = true;
  }
  return requests;
}

std::vector<std::vector<std::int32_t>> tokens_of(const OpenModel& model, int ranks,
                                                 const EngineOptions& options) {
  TestEngine engine(model, ranks, options);
  std::vector<std::vector<std::int32_t>> tokens;
  for (const auto& answers : engine.run(requests_of(model))) {
    CHECK(answers.front().error.empty());
    tokens.push_back(answers.front().tokens);
  }
  engine.stop();
  return tokens;
}

EngineOptions paged() {
  EngineOptions options;
  options.max_model_len = 96;
  options.max_num_seqs = 8;
  return options;
}

TEST_CASE("sequences that fit into their budgets get the tokens of full attention") {
  RANKS_OR_SKIP(1);
  const OpenModel model = open_model({.path = kModel, .dtype = DType::f32});
  const auto right = tokens_of(model, 1, paged());
  for (const int ranks : {1, 3}) {
    RANKS_OR_SKIP(ranks);
    CAPTURE(ranks);
    for (const PrefillAttention prefill :
         {PrefillAttention::minference, PrefillAttention::xattention}) {
      EngineOptions options = paged();
      options.prefill_attention = prefill;
      options.decode_attention = DecodeAttention::quest;
      options.max_num_batched_tokens = 24;  // chunked prompts in steps with decodes
      CHECK(tokens_of(model, ranks, options) == right);
    }
  }
}

TEST_CASE("contiguous: the same") {
  RANKS_OR_SKIP(1);
  const OpenModel model = open_model({.path = kModel, .dtype = DType::f32});
  const auto right = tokens_of(model, 1, paged());
  EngineOptions options;
  options.max_seq_len = 90;  // not a multiple of a page
  options.prefill_attention = PrefillAttention::automatic;
  options.decode_attention = DecodeAttention::quest;
  CHECK(tokens_of(model, 1, options) == right);
}

EngineOptions in_host_memory(KvOffload offload, std::int64_t chunk) {
  EngineOptions options = paged();
  options.kv_offload = offload;
  options.transfer_block = 16;
  options.kv_buffers = 2;
  options.max_num_batched_tokens = chunk;
  options.resident_blocks = 0;
  return options;
}

TEST_CASE("in host memory: the same, of pages from the host's memory and the device's") {
  RANKS_OR_SKIP(1);
  const OpenModel model = open_model({.path = kModel, .dtype = DType::f32});
  const auto right = tokens_of(model, 1, paged());
  for (const KvOffload offload : {KvOffload::chunked, KvOffload::layerwise}) {
    CAPTURE(static_cast<int>(offload));
    for (const int ranks : {1, 3}) {
      RANKS_OR_SKIP(ranks);
      CAPTURE(ranks);
      for (const std::int64_t chunk : {8192, 24}) {
        EngineOptions options = in_host_memory(offload, chunk);
        options.decode_attention = DecodeAttention::quest;
        options.graphs = ranks != 3 || chunk != 24;
        CHECK(tokens_of(model, ranks, options) == right);
        if (offload != KvOffload::chunked) continue;
        options.resident_blocks = 5;
        CHECK(tokens_of(model, ranks, options) == right);
      }
    }
  }
}

// Long enough for the policies, and longer than a step.
constexpr std::int64_t kLongChunk = 640, kLongBlock = 128;

EngineOptions long_options(PrefillAttention prefill, KvCacheDtype kv_cache_dtype) {
  EngineOptions options;
  options.kv_cache_dtype = kv_cache_dtype;
  options.max_model_len = 1664;
  options.max_num_seqs = 2;
  options.max_num_batched_tokens = kLongChunk;
  options.block_size = kLongBlock;
  options.prefill_attention = prefill;
  options.decode_attention = DecodeAttention::quest;
  return options;
}

// One request after the other, so that every step has rows of one prompt; the second request shares
// a prefix with the first.
std::vector<Answer> long_answers(const OpenModel& model, int ranks, const EngineOptions& options) {
  constexpr std::size_t kPrefix = 1024, kFirst = 1500, kSecond = 1324;
  std::mt19937 random(11);
  const auto extend = [&](std::vector<std::int32_t> text, std::size_t length) {
    while (text.size() < length) {
      text.push_back(static_cast<std::int32_t>(
          random() % static_cast<std::uint32_t>(model.config.vocab_size)));
    }
    return text;
  };
  const std::vector<std::int32_t> prefix = extend({}, kPrefix);
  TestEngine engine(model, ranks, options);
  std::vector<Answer> all;
  for (const std::size_t length : {kFirst, kSecond}) {
    Request request;
    request.prompt = extend(prefix, length);
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 6;
    request.sampling.logprobs = 0;
    request.sampling.ignore_eos = true;
    const auto answers = engine.run({request}, length);
    const Answer& answer = answers.front().front();
    CHECK(answer.error.empty());
    CHECK(answer.cached_tokens == (length == kSecond ? std::int32_t{kPrefix} : 0));
    all.push_back(answer);
  }
  const EngineStatistics statistics = engine.client().statistics();
  CHECK((statistics.kv_bytes_to_device > 0) == (options.kv_offload != KvOffload::off));
  engine.stop();
  return all;
}

// The maximum difference of the log-probabilities; infinity if tokens differ.
double max_difference(const std::vector<Answer>& a, const std::vector<Answer>& b) {
  double max = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].tokens != b[i].tokens) return std::numeric_limits<double>::infinity();
    for (std::size_t t = 0; t < a[i].tokens.size(); ++t) {
      const float one = a[i].logprobs.at(t).chosen.logprob,
                  other = b[i].logprobs.at(t).chosen.logprob;
      max = std::max(max, std::fabs(double{one} - other));
    }
  }
  return max;
}

TEST_CASE("long prompts get the same tokens of a policy wherever their keys and values are") {
  RANKS_OR_SKIP(1);
  OpenModel model = open_model({.path = kModel, .dtype = DType::f32});
  model.config.max_position_embeddings = 4096;
  for (const auto& how : {std::pair{PrefillAttention::minference, KvCacheDtype::fp8_e4m3},
                          {PrefillAttention::minference, KvCacheDtype::automatic},
                          {PrefillAttention::xattention, KvCacheDtype::automatic}}) {
    const PrefillAttention prefill = how.first;
    const KvCacheDtype dtype = how.second;
    // Data races could only be in the caches, whatever the policy.
    if (testing::kSanitized && dtype != KvCacheDtype::fp8_e4m3) continue;
    CAPTURE(static_cast<int>(prefill));
    CAPTURE(static_cast<int>(dtype));
    const auto right = long_answers(model, 1, long_options(prefill, dtype));
    // With the model's random weights, block-mask policies keep all tiles.
    if (prefill == PrefillAttention::minference) {
      const auto full = long_answers(model, 1, long_options(PrefillAttention::full, dtype));
      CHECK(max_difference(right, full) > 1e-3);
    }
    for (const KvOffload offload : {KvOffload::chunked, KvOffload::layerwise}) {
      CAPTURE(static_cast<int>(offload));
      const int ranks = offload == KvOffload::chunked ? 2 : 3;
      RANKS_OR_SKIP(ranks);
      EngineOptions options = long_options(prefill, dtype);
      options.kv_offload = offload;
      options.transfer_block = kLongBlock;
      options.ring_slots = 2;
      options.kv_buffers = 2;
      options.resident_blocks = 0;
      CHECK(max_difference(long_answers(model, ranks, options), right) < 1e-4);
      if (offload != KvOffload::chunked) continue;
      options.resident_blocks = 5;  // fewer than half of a prompt's blocks
      CHECK(max_difference(long_answers(model, ranks, options), right) < 1e-4);
    }
  }
}

std::string refusal(const EngineOptions& options) {
  try {
    check_sparse_attention(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("pages cross no block: what they do not divide is refused, and every mode is served") {
  EngineOptions options = paged();
  options.prefill_attention = PrefillAttention::xattention;
  options.decode_attention = DecodeAttention::quest;
  CHECK(refusal(options) == "");
  options.block_size = 24;
  CHECK(refusal(options) ==
        "--decode-attention quest: --block-size is 24; it must be a multiple of 16");
  for (const KvOffload offload : {KvOffload::chunked, KvOffload::layerwise}) {
    options.kv_offload = offload;  // its blocks have another size
    CHECK(refusal(options) == "");
  }
}

}  // namespace
}  // namespace nvllm::runtime
