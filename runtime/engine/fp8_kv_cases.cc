// An FP8 KV cache yields the same tokens in every cache mode, however prompts are chunked, shared,
// swapped or distributed over ranks, and results close to those of an unquantized cache.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "model/testing/safetensors_builder.h"
#include "model/testing/test_folder.h"
#include "runtime/engine/testing/kv_modes.h"
#include "testing/device_ranks.h"

namespace nvllm::runtime {
namespace {

constexpr const char* kModel = "tests/data/golden-models/qwen3-uneven";  // 9 heads, 3 KV heads

OpenModel open_float32() {
  return open_model({.path = kModel, .dtype = DType::f32});
}

// Requests whose prompts may begin with a cached prefix.
std::vector<Request> prompts_of(const OpenModel& model, const std::vector<std::int64_t>& lengths) {
  std::vector<Request> requests = requests_of(model, lengths);
  for (Request& request : requests) request.sampling.prompt_logprobs.reset();
  return requests;
}

EngineOptions fp8() {
  EngineOptions options = paged();
  options.kv_cache_dtype = KvCacheDtype::fp8_e4m3;
  return options;
}

// Describes the first wrong answer; empty: none.
std::string compare_tokens(const Answers& got, const Answers& right) {
  for (std::size_t i = 0; i < right.size(); ++i) {
    if (const std::string& error = got[i].front().error; !error.empty()) return error;
    if (got[i].front().tokens != right[i].front().tokens)
      return str("request ", i, ": other tokens");
  }
  return {};
}

struct Way {
  const char* name;
  EngineOptions options;
  int ranks = 1;
  const char* kv_mode = "paged";
};

EngineOptions offloaded(KvOffload mode) {
  EngineOptions options = fp8();
  options.kv_offload = mode;
  options.transfer_block = 16;
  options.kv_buffers = 2;
  options.ring_slots = 3;
  options.kv_offloading_bytes = std::int64_t{64} << 20;
  options.resident_blocks = 0;
  options.max_num_batched_tokens = 24;
  return options;
}

std::vector<Way> all_ways() {
  std::vector<Way> ways;
  for (const int ranks : {1, 2, 3}) {
    Way cut{"prompts in pieces", fp8(), ranks};
    cut.options.max_num_batched_tokens = 24;
    cut.options.graphs = ranks != 2;
    ways.push_back(cut);
    Way swapped{"swapped", fp8(), ranks};
    swapped.options.block_size = 4;
    swapped.options.kv_cache_memory_bytes = 0;  // chosen by the plan
    ways.push_back(swapped);
    ways.push_back({"layer-wise", offloaded(KvOffload::layerwise), ranks, "layerwise"});
    ways.push_back({"chunked", offloaded(KvOffload::chunked), ranks, "chunked"});
    Way by_host{"chunked, the host's cores attending", offloaded(KvOffload::chunked), ranks,
                "chunked"};
    by_host.options.host_attention = 0.5;
    by_host.options.host_threads = 2;
    ways.push_back(by_host);
    // All pages of sequences this short are selected.
    for (const auto& [name, options, kv_mode] :
         {std::tuple{"Quest", fp8(), "paged"},
          {"Quest, layer-wise", offloaded(KvOffload::layerwise), "layerwise"},
          {"Quest, chunked", offloaded(KvOffload::chunked), "chunked"}}) {
      Way quest{name, options, ranks, kv_mode};
      quest.options.decode_attention = DecodeAttention::quest;
      ways.push_back(quest);
    }
  }
  Way contiguous{"contiguous", fp8(), 1, "contiguous"};
  contiguous.options.max_seq_len = kMaxLen;
  ways.push_back(contiguous);
  Way staying{"chunked, some of it staying", offloaded(KvOffload::chunked), 1, "resident"};
  staying.options.resident_blocks = 6;
  ways.push_back(staying);
  return ways;
}

// Summed over all ranks; a quarter of what float32 takes.
std::uint64_t token_bytes(const OpenModel& model) {
  return static_cast<std::uint64_t>(2 * model.config.layers * model.config.kv_heads *
                                    model.config.head_dim);
}

TEST_CASE("FP8 KV: the same tokens, whichever way") {
  RANKS_OR_SKIP(1);
  const OpenModel model = open_float32();
  const std::vector<Request> requests = prompts_of(model, {1, 16, 17, 33, 47, kMaxLen - 1, 5, 40});
  const Answers right = run(model, 1, fp8(), requests);
  for (Way& way : all_ways()) {
    RANKS_OR_SKIP(way.ranks);
    CAPTURE(way.name);
    CAPTURE(way.ranks);
    if (way.options.kv_cache_memory_bytes) {  // holds little more than two of the sequences
      way.options.kv_cache_memory_bytes = static_cast<std::int64_t>(
          (token_bytes(model) + sizeof(std::int32_t)) * (2 * kMaxLen + 16) / way.ranks);
    }
    TestEngine engine(model, way.ranks, way.options);
    const Answers got = engine.run(requests);
    CHECK(compare_tokens(got, right) == "");
    CHECK(got.front().front().kv_mode == way.kv_mode);
    // Again, with prefixes that are now cached.
    CHECK(compare_tokens(engine.run(requests, 100), right) == "");
    const EngineStatistics statistics = engine.client().statistics();
    if (way.options.kv_cache_memory_bytes) CHECK(statistics.scheduler.preemptions > 0);
    if (way.options.host_attention != 0.0) CHECK(statistics.kv_bytes_by_host > 0);
    engine.stop();
  }
}

TEST_CASE("FP8 KV: it takes a byte a number, and is near what is not quantized") {
  RANKS_OR_SKIP(1);
  const OpenModel model = open_float32();
  const std::vector<Request> requests = prompts_of(model, {20, 40, 60});
  EngineOptions plain = fp8();
  plain.kv_cache_dtype = KvCacheDtype::automatic;
  const Answers exact = run(model, 1, plain, requests);
  TestEngine engine(model, 1, fp8());
  CHECK(engine.info().kv_bytes_per_token - sizeof(std::int32_t) == token_bytes(model));
  const Answers got = engine.run(requests);
  bool equal = true;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const float ours = got[i].front().logprobs.front().chosen.logprob;
    const float theirs = exact[i].front().logprobs.front().chosen.logprob;
    CHECK(std::fabs(ours - theirs) < 0.25f);
    equal = equal && ours == theirs;
  }
  CHECK_FALSE(equal);
  engine.stop();
}

// The test model with key and value scales for all layers, in an extra file.
void write_scaled_model(const model::TestFolder& folder, const OpenModel& of, float key_scale,
                        float value_scale) {
  namespace fs = std::filesystem;
  constexpr const char* kIndex = "model.safetensors.index.json";
  model::SafetensorsBuilder scales;
  std::string entries;
  for (std::int64_t layer = 0; layer < of.config.layers; ++layer) {
    for (const auto& [which, scale] : {std::pair{"k", key_scale}, {"v", value_scale}}) {
      const std::string name = str("model.layers.", layer, ".self_attn.", which, "_scale");
      scales.set(name, "F32", {1}, std::vector<float>{scale});
      entries += "\"" + name + "\":\"scales.safetensors\",";
    }
  }
  scales.write(folder);
  fs::rename(folder.path("model.safetensors"), folder.path("scales.safetensors"));
  for (const fs::directory_entry& file : fs::directory_iterator(kModel)) {
    fs::copy(file.path(), folder.path(file.path().filename().string()),
             fs::copy_options::overwrite_existing);
  }
  std::ifstream in(folder.path(kIndex));
  std::string index{std::istreambuf_iterator<char>(in), {}};
  index.insert(index.find('{', index.find("\"weight_map\"")) + 1, entries);
  fs::permissions(folder.path(kIndex), fs::perms::owner_write, fs::perm_options::add);
  folder.write(kIndex, index);
}

TEST_CASE("FP8 KV: the checkpoint's scales, on every rank") {
  RANKS_OR_SKIP(1);
  const OpenModel plain = open_float32();
  const std::vector<Request> requests = prompts_of(plain, {20, 40, 60});
  const Answers right = run(plain, 1, fp8(), requests);
  const auto logprob = [](const Answers& of, std::size_t i) {
    return of[i].front().logprobs.front().chosen.logprob;
  };
  struct Case {
    float key, value;
    int ranks;
    bool near;  // whether the result is close to that without scales
  };
  // Powers of 2 only change the rounding of the smallest numbers. With the last pair almost every
  // value exceeds 448.
  for (const Case& each :
       {Case{0.5f, 0.25f, 1, true}, {0.0625f, 0.125f, 3, true}, {0x1p-13f, 0x1p-13f, 2, false}}) {
    RANKS_OR_SKIP(each.ranks);
    CAPTURE(each.key);
    const model::TestFolder folder;
    write_scaled_model(folder, plain, each.key, each.value);
    const OpenModel scaled = open_model({.path = folder.path(), .dtype = DType::f32});
    const Answers got = run(scaled, each.ranks, fp8(), requests);
    float largest = 0;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      largest = std::max(largest, std::fabs(logprob(got, i) - logprob(right, i)));
    }
    CHECK((largest < 0.25f) == each.near);
    // An unquantized cache ignores them.
    EngineOptions unquantized = fp8();
    unquantized.kv_cache_dtype = KvCacheDtype::automatic;
    CHECK(compare_tokens(run(scaled, 1, unquantized, requests),
                         run(plain, 1, unquantized, requests)) == "");
  }
}

TEST_CASE("FP8 KV: heads of other lengths than multiples of 16 are refused") {
  CHECK_NOTHROW(check_kv_cache_dtype(fp8(), 80));
  CHECK_THROWS_WITH_AS(check_kv_cache_dtype(fp8(), 72),
                       "--kv-cache-dtype fp8: the model's head_dim is 72, which is no multiple of "
                       "16; pass --kv-cache-dtype auto",
                       Error);
}

}  // namespace
}  // namespace nvllm::runtime
