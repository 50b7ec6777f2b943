// The same tokens and log-probabilities in every mode of the cache as with blocks on the device: at
// lengths around all boundaries, up to the last token that fits, on one to three ranks.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/testing/kv_modes.h"
#include "testing/device_ranks.h"

namespace nvllm::runtime {
namespace {

constexpr const char* kModel = "tests/data/golden-models/qwen3-uneven";  // 9 heads, 3 KV heads

OpenModel open_float32() {
  return open_model({.path = kModel, .dtype = DType::f32});
}

TEST_CASE(
    "contiguous: the same tokens, one sequence at a time, to the last token there is room for") {
  RANKS_OR_SKIP(1);
  const OpenModel model = open_float32();
  const std::vector<Request> requests = requests_of(model, {1, 33, kMaxLen - 2, kMaxLen - 1});
  const Answers right = run(model, 1, paged(), requests);
  for (const int ranks : {1, 2, 3}) {
    RANKS_OR_SKIP(ranks);
    CAPTURE(ranks);
    EngineOptions options;
    options.max_seq_len = kMaxLen;
    if (ranks != 2) options.max_num_batched_tokens = kChunk;
    options.max_num_seqs = kChunk;  // only one runs
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

TEST_CASE("contiguous: a prompt that leaves no room is refused, and the next one runs") {
  RANKS_OR_SKIP(1);
  const OpenModel model = open_float32();
  EngineOptions options;
  options.max_seq_len = kMaxLen;
  TestEngine engine(model, 1, options);
  const Answers got = engine.run(requests_of(model, {kMaxLen, kMaxLen - 1}));
  CHECK(got[0].front().error.find("prompt of 64 tokens: max_model_len is 64") == 0);
  CHECK(got[1].front().tokens.size() == 1);
  engine.stop();
}

TEST_CASE("layer-wise: the same tokens, any number of buffers, around all boundaries") {
  RANKS_OR_SKIP(1);
  const OpenModel model = open_float32();
  const std::vector<Request> requests =
      requests_of(model, {1, 15, 16, 17, 23, 24, 25, 47, 48, 49, kMaxLen - 2, kMaxLen - 1});
  const Answers right = run(model, 1, paged(), requests);
  struct Case {
    int ranks;
    std::int64_t buffers, chunk;
  };
  for (const Case& each : {Case{1, 2, kChunk}, Case{1, 3, kChunk}, Case{1, 4, 8192}, Case{1, 8, 16},
                           Case{2, 2, kChunk}, Case{3, 4, 40}}) {
    RANKS_OR_SKIP(each.ranks);
    CAPTURE(each.ranks);
    CAPTURE(each.buffers);
    TestEngine engine(model, each.ranks, layerwise(each.buffers, each.chunk));
    const Answers got = engine.run(requests);
    CHECK(engine.info().block_size == 16);
    CHECK(compare(got, right) == "");
    CHECK(got.front().front().kv_mode == "layerwise");
    const EngineStatistics statistics = engine.client().statistics();
    CHECK(statistics.kv_bytes_to_host > 0);
    CHECK(statistics.kv_bytes_to_device > 0);
    engine.stop();
  }
}

TEST_CASE("chunked: the same tokens, whatever the ring") {
  RANKS_OR_SKIP(1);
  const OpenModel model = open_float32();
  const std::vector<Request> requests = requests_of(model, {1, 16, 17, 33, 47, kMaxLen - 1});
  const Answers right = run(model, 1, paged(), requests);
  for (const int ranks : {1, 2, 3}) {
    RANKS_OR_SKIP(ranks);
    CAPTURE(ranks);
    EngineOptions options = layerwise(2, kChunk);
    options.kv_offload = KvOffload::chunked;
    options.ring_slots = ranks + 1;
    TestEngine engine(model, ranks, options);
    const Answers got = engine.run(requests);
    CHECK(compare(got, right) == "");
    CHECK(got.front().front().kv_mode == "chunked");
    const EngineStatistics statistics = engine.client().statistics();
    CHECK(statistics.kv_bytes_to_host > 0);
    CHECK(statistics.kv_bytes_to_device > 0);
    engine.stop();
  }
}

// How many answers have this residence.
std::ptrdiff_t count_of(const Answers& answers, const std::string& kv_mode) {
  return std::ranges::count_if(answers,
                               [&](const auto& each) { return each.front().kv_mode == kv_mode; });
}

TEST_CASE(
    "chunked, some of it staying: the same tokens, of sequences that stay as far as there is "
    "room") {
  RANKS_OR_SKIP(1);
  const OpenModel model = open_float32();
  // Sequences of up to four blocks, all of which fit.
  const std::vector<Request> requests = requests_of(model, {1, 16, 17, 33, 47, kMaxLen - 1});
  const Answers right = run(model, 1, paged(), requests);
  for (const int ranks : {1, 2, 3}) {
    RANKS_OR_SKIP(ranks);
    CAPTURE(ranks);
    EngineOptions options = layerwise(2, kChunk);
    options.kv_offload = KvOffload::chunked;
    options.resident_blocks = 6;
    options.graphs = ranks != 2;
    TestEngine engine(model, ranks, options);
    CHECK(engine.info().resident_blocks == 6);
    const Answers got = engine.run(requests);
    CHECK(compare(got, right) == "");
    CHECK(got[0].front().kv_mode == "resident");
    CHECK(got[1].front().kv_mode == "hybrid");
    CHECK(count_of(got, "chunked") > 0);
    // Later sequences use the blocks that earlier ones freed.
    CHECK(engine.run({requests[3]}, 100).front().front().kv_mode == "resident");
    engine.stop();
  }
}

TEST_CASE("chunked, all of it staying: nothing leaves the device, and prefixes are found there") {
  RANKS_OR_SKIP(1);
  const OpenModel model = open_float32();
  const std::vector<Request> requests = requests_of(model, {1, 16, 17, 33, 47, kMaxLen - 1});
  const Answers right = run(model, 1, paged(), requests);
  for (const int ranks : {1, 2}) {
    RANKS_OR_SKIP(ranks);
    CAPTURE(ranks);
    EngineOptions options = layerwise(2, kChunk);
    options.kv_offload = KvOffload::chunked;
    options.resident_blocks.reset();
    TestEngine engine(model, ranks, options);
    CHECK(engine.info().resident_blocks == engine.info().blocks);
    const Answers got = engine.run(requests);
    CHECK(compare(got, right) == "");
    CHECK(count_of(got, "resident") == static_cast<std::ptrdiff_t>(got.size()));
    std::vector<Request> known = requests;
    Answers same = right;
    for (std::size_t i = 0; i < known.size(); ++i) {
      known[i].sampling.prompt_logprobs.reset();
      same[i].front().prompt_logprobs.clear();
    }
    const Answers again = engine.run(known);
    CHECK(compare(again, same) == "");
    CHECK(again.back().front().cached_tokens == kMaxLen - 16);
    const EngineStatistics statistics = engine.client().statistics();
    CHECK(statistics.kv_bytes_to_host == 0);
    CHECK(statistics.kv_bytes_to_device == 0);
    engine.stop();
  }
}

TEST_CASE(
    "chunked, with little room on the device: others wait until those that fill blocks there are "
    "done") {
  RANKS_OR_SKIP(1);
  const OpenModel model = open_float32();
  std::vector<Request> requests = requests_of(model, {1, 16, 17, 33, 47, kMaxLen - 1, 5, 40, 20});
  const Answers right = run(model, 1, paged(), requests);
  EngineOptions options = layerwise(2, kChunk);
  options.kv_offload = KvOffload::chunked;
  options.resident_blocks.reset();
  options.ring_slots = 8;
  options.kv_cache_memory_bytes = 840 << 10;
  TestEngine engine(model, 1, options);
  CAPTURE(engine.info().notes.front());
  CHECK(engine.info().resident_blocks > 4);
  CHECK(engine.info().resident_blocks < 12);
  const Answers got = engine.run(requests);
  CHECK(compare(got, right) == "");
  CHECK(count_of(got, "resident") > 0);
  CHECK(count_of(got, "chunked") + count_of(got, "hybrid") > 0);
  engine.stop();
}

TEST_CASE("chunked, the host's cores attending: the same tokens, by any share") {
  RANKS_OR_SKIP(1);
  const OpenModel model = open_float32();
  const std::vector<Request> requests = requests_of(model, {1, 16, 17, 33, 47, kMaxLen - 1});
  const Answers right = run(model, 1, paged(), requests);
  struct Case {
    int ranks;
    double share;
    std::int64_t ring;
  };
  for (const Case& each : {Case{1, 0.3, 8}, Case{2, 0.5, 3}, Case{3, 1, 2}}) {
    RANKS_OR_SKIP(each.ranks);
    CAPTURE(each.ranks);
    EngineOptions options = layerwise(2, kChunk);
    options.kv_offload = KvOffload::chunked;
    options.ring_slots = each.ring;
    options.host_attention = each.share;
    options.host_threads = 2;
    TestEngine engine(model, each.ranks, options);
    CHECK(compare(engine.run(requests), right) == "");
    CHECK(engine.client().statistics().kv_bytes_by_host > 0);
    engine.stop();
  }
}

TEST_CASE("layer-wise: a prompt goes through each layer once, and decoding loads what there is") {
  RANKS_OR_SKIP(1);
  const OpenModel model = open_float32();
  std::vector<Request> requests = requests_of(model, {48});
  requests[0].sampling.max_tokens = 4;
  requests[0].sampling.prompt_logprobs.reset();
  EngineOptions options = layerwise(2, kChunk);
  options.async_scheduling = false;
  const auto token = static_cast<std::uint64_t>(2 * model.config.kv_heads * model.config.head_dim) *
                     sizeof(float);  // of one layer
  const auto layers = static_cast<std::uint64_t>(model.config.layers);
  for (const bool graphs : {false, true}) {
    CAPTURE(graphs);
    options.graphs = graphs;
    TestEngine engine(model, 1, options);
    engine.run(requests);
    const EngineStatistics statistics = engine.client().statistics();
    CHECK(statistics.scheduler.steps == 4);
    CHECK(statistics.kv_bytes_to_host == (48 + 3) * layers * token);
    // Graphs load whole blocks, and prefetch two more layers at each new block.
    const std::uint64_t loaded =
        graphs ? (48 + 64 + 64) * layers + (48 + 64) * 2 : (48 + 49 + 50) * layers;
    CHECK(statistics.kv_bytes_to_device == loaded * token);
    engine.stop();
  }
}

// In a mode with blocks on the host, of which there are enough for two of the longest sequences.
void share_and_preempt(KvOffload offload, DecodeAttention decode = DecodeAttention::full,
                       std::optional<std::int64_t> resident = 0) {
  const OpenModel model = open_float32();
  const std::vector<Request> once = requests_of(model, {17, 20, 18, 33});
  std::vector<Request> requests;  // each twice in succession
  for (const Request& request : once) {
    requests.insert(requests.end(), 2, request);
    for (Request* const each : {&requests.back(), &requests.back() - 1}) {
      each->sampling.prompt_logprobs.reset();
    }
  }
  const Answers right = run(model, 1, paged(), requests);
  EngineOptions options = layerwise(2, kChunk);
  options.kv_offload = offload;
  options.decode_attention = decode;
  options.resident_blocks = resident;
  options.kv_offloading_bytes = 2 * kMaxLen * model.config.layers * 2 * model.config.kv_heads *
                                model.config.head_dim * std::int64_t{sizeof(float)};
  TestEngine engine(model, 2, options);
  CHECK(engine.info().blocks == 2 * kMaxLen / 16);
  CHECK(compare(engine.run(requests), right) == "");
  const SchedulerStatistics statistics = engine.client().statistics().scheduler;
  CHECK(statistics.preemptions > 0);
  CHECK(statistics.prefix.hit_tokens > 0);
  engine.stop();
}

TEST_CASE("layer-wise: prefixes are shared, and what was preempted is computed again") {
  RANKS_OR_SKIP(2);
  share_and_preempt(KvOffload::layerwise);
}

TEST_CASE("chunked: prefixes are shared, and what was preempted is computed again") {
  RANKS_OR_SKIP(2);
  share_and_preempt(KvOffload::chunked);
}

TEST_CASE("chunked, some or all of it staying: what was preempted gives its places back") {
  RANKS_OR_SKIP(2);
  for (const std::optional<std::int64_t> resident : {std::optional<std::int64_t>(), {1}, {3}}) {
    CAPTURE(resident.value_or(-1));
    share_and_preempt(KvOffload::chunked, DecodeAttention::full, resident);
    share_and_preempt(KvOffload::chunked, DecodeAttention::quest, resident);
  }
}

TEST_CASE("with quest: prefixes are shared, and what was preempted is computed again") {
  RANKS_OR_SKIP(2);
  for (const KvOffload offload : {KvOffload::layerwise, KvOffload::chunked}) {
    CAPTURE(static_cast<int>(offload));
    share_and_preempt(offload, DecodeAttention::quest);
  }
}

}  // namespace
}  // namespace nvllm::runtime
