// Sparse attention through whole engines: where budgets hold everything, the same tokens as full attention, on one
// to three ranks; and what a mode cannot serve is refused in one line.
#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/sparse_attention.h"
#include "runtime/test_engine.h"
#include "testing/device_ranks.h"

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
      options.max_num_batched_tokens = 24;  // prompts in parts, beside tokens
      CHECK(tokens_of(model, ranks, options) == right);
    }
  }
}

TEST_CASE("contiguous: the same") {
  RANKS_OR_SKIP(1);
  const OpenModel model = open_model({.path = kModel, .dtype = DType::f32});
  const auto right = tokens_of(model, 1, paged());
  EngineOptions options;
  options.max_seq_len = 90;  // no multiple of a page
  options.prefill_attention = PrefillAttention::automatic;
  options.decode_attention = DecodeAttention::quest;
  CHECK(tokens_of(model, 1, options) == right);
}

TEST_CASE("chunked: the same, of pages from the host's memory and the device's") {
  RANKS_OR_SKIP(1);
  const OpenModel model = open_model({.path = kModel, .dtype = DType::f32});
  const auto right = tokens_of(model, 1, paged());
  for (const int ranks : {1, 3}) {
    RANKS_OR_SKIP(ranks);
    CAPTURE(ranks);
    for (const std::int64_t chunk : {8192, 24}) {
      EngineOptions options = paged();
      options.kv_offload = KvOffload::chunked;
      options.transfer_block = 16;
      options.max_num_batched_tokens = chunk;
      options.decode_attention = DecodeAttention::quest;
      CHECK(tokens_of(model, ranks, options) == right);
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

TEST_CASE("what a mode cannot serve is refused, not replaced") {
  EngineOptions options = paged();
  options.prefill_attention = PrefillAttention::xattention;
  options.decode_attention = DecodeAttention::quest;
  CHECK(refusal(options) == "");
  options.block_size = 24;
  CHECK(refusal(options) ==
        "--decode-attention quest: --block-size is 24; it must be a multiple of 16");
  options.block_size = 16;
  options.kv_offload = KvOffload::layerwise;
  CHECK(refusal(options) ==
        "--prefill-attention xattention is not available with --kv-offload layerwise; pass "
        "--prefill-attention full or --kv-offload off");
  options.prefill_attention = PrefillAttention::full;
  CHECK(refusal(options) ==
        "--decode-attention quest is not available with --kv-offload layerwise; pass "
        "--decode-attention full, or --kv-offload off or chunked");
  options.decode_attention = DecodeAttention::full;
  options.prefill_attention = PrefillAttention::automatic;  // chooses full
  CHECK(refusal(options) == "");
}

}  // namespace
}  // namespace nvllm::runtime
