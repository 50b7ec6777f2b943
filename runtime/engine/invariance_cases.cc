// Invariance: the bits of a request's log-probabilities, and so its tokens, do not depend on what
// else runs, how its prompt is chunked, whether its prefix is cached, whether it is swapped out or
// recomputed, or where its keys and values are stored. Random requests run on one rank: on the CPU,
// and with --invariant batch on a GPU. With --invariant tp the bits do not depend on the number of
// ranks either; these may share a GPU.
#include <doctest/doctest.h>

#include <bit>
#include <cstdint>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
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
constexpr std::int64_t kRequests = testing::kSanitized ? 10 : 20, kGpuRequests = 32;
constexpr std::int64_t kFewRequests = 8;
constexpr std::int64_t kMaxPrompt = 320;  // longer than one segment of attention
constexpr std::int64_t kMaxAnswer = 32;
constexpr std::int64_t kMaxModelLen = kMaxPrompt + kMaxAnswer;
constexpr std::size_t kLongPrompt = kMaxModelLen / 2 - 4;

// One configuration, and how to verify that it took effect.
struct Way {
  std::string name;
  EngineOptions options;
  bool prompts_first = false;  // prompts run once before, so that they are cached
  std::uint64_t SchedulerStatistics::*happened = nullptr;  // this counter must not be 0
  bool loads = false;                                      // keys and values from host memory
  std::string exception = {};  // why its bits differ, which is known and not compared
  int ranks = 1, stages = 1;
};

bool on_gpu() {
  return testing::device_under_test() == DeviceKind::cuda;
}

// Ranks that share a GPU run on it in turn, and a collective takes some milliseconds.
bool ranks_share_gpus() {
  return on_gpu() && !testing::why_no_ranks(4).empty();
}

// Maximum rows of a step. With quantized weights, a row's bits are the same in all steps of up to
// 16 rows, and other bits in larger steps (kernels/gemm/cpu/row_invariance_test.cc).
constexpr std::int64_t kManyRows = 512, kFewRows = 16;

EngineOptions usual(const OpenModel& model, std::int64_t rows) {
  EngineOptions options;
  options.invariance = model.tp_invariant ? Invariance::tp
                       : on_gpu()         ? Invariance::batch
                                          : Invariance::off;
  options.max_model_len = kMaxModelLen;
  options.max_num_seqs = std::min<std::int64_t>(32, rows);
  options.max_num_batched_tokens = rows;
  options.swap_space_bytes = std::int64_t{64} << 20;
  options.state_snapshot_tokens = 16;
  // Each of several ranks would otherwise take most of the GPU that they share.
  if (model.tp_invariant && on_gpu()) options.kv_cache_memory_bytes = std::int64_t{256} << 20;
  return options;
}

class Ways {
 public:
  // rows: maximum per step.
  Ways(const OpenModel& model, std::int64_t rows) : model_(model), rows_(rows) {}

  std::vector<Way> all() {
    add("all at once");
    for (const std::int64_t chunk : {1, 7, 16, 40, 100, 256}) {
      if (chunk > rows_) break;
      EngineOptions& options = add(str("in chunks of ", chunk)).options;
      options.max_num_batched_tokens = chunk;
      options.max_num_seqs = std::min(options.max_num_seqs, chunk);
    }
    for (const std::int64_t block : {4, 32}) {
      add(str("blocks of ", block)).options.block_size = block;
    }
    add("prefixes cached").prompts_first = true;
    add("no prefixes cached").options.prefix_caching = false;
    add("not ahead").options.async_scheduling = false;
    add("without graphs").options.graphs = false;
    add("prefill first").options.scheduling = Scheduling::prefill_first;
    add_preempted();
    add("contiguous").options.max_seq_len = kMaxModelLen;
    add_offloaded();
    return ways_;
  }

  // The configurations with several ranks, combined with some of the above.
  std::vector<Way> with_ranks() {
    const std::vector<int> numbers =
        ranks_share_gpus() ? std::vector{2, 3} : std::vector{1, 2, 3, 4};
    for (const int ranks : numbers) add(str(ranks, " ranks")).ranks = ranks;
    if (ranks_share_gpus()) return ways_;
    Way* way = &add("2 ranks, in chunks of 7");
    way->ranks = 2;
    way->options.max_num_batched_tokens = way->options.max_num_seqs = 7;
    if (!is_hybrid()) {
      way = &add("2 ranks, prefixes cached");
      way->ranks = 2;
      way->prompts_first = true;
      way = &add("3 ranks, preempted by swapping");
      way->ranks = 3;
      make_tiny(*way);
      way->happened = &SchedulerStatistics::swapped_blocks;
    }
    if (in_chunks() && rows_ == kManyRows) {
      add_chunks("1 rank, ", {.block = 48, .ring = 16, .resident = 0, .rows = 40});
      add_chunks("2 ranks, ", {.block = 16, .ring = 3, .resident = 30, .rows = rows_}).ranks = 2;
      add_chunks("3 ranks, ", {.block = 112, .ring = 2, .resident = 0, .rows = 100}).ranks = 3;
    }
    if (model_.config.kv_shared_layers > 0) return ways_;
    way = &add("2 stages of 2 ranks");
    way->ranks = way->stages = 2;
    return ways_;
  }

 private:
  Way& add(const std::string& name) {
    ways_.push_back({.name = name, .options = usual(model_, rows_)});
    return ways_.back();
  }

  bool is_hybrid() const { return model_.config.linear_attention.key_heads > 0; }

  void add_preempted() {
    Way* way = &add("preempted by swapping");
    make_tiny(*way);
    way->happened =
        is_hybrid() ? &SchedulerStatistics::swapped_states : &SchedulerStatistics::swapped_blocks;
    way = &add("preempted by recomputing");
    way->options.prefix_caching = false;  // the prefix cache might still hold all tokens
    make_tiny(*way);
    way->options.preemption = Preemption::recompute;
    way->happened = &SchedulerStatistics::recomputed_tokens;
    if (!is_hybrid()) return;
    way = &add("from snapshots of states, of which there are few, after preemption");
    way->prompts_first = true;
    make_tiny(*way);
    way->options.preemption = Preemption::recompute;
    way->happened = &SchedulerStatistics::restored_states;
  }

  void add_offloaded() {
    if (model_.config.kv_shared_layers > 0) return;
    Way* way = &add("layer-wise");
    way->options.kv_offload = KvOffload::layerwise;
    way->options.transfer_block = 16;
    if (!in_chunks()) return;
    way = &add("offloaded in chunks, all of which stay");
    way->options.kv_offload = KvOffload::chunked;
    way->options.transfer_block = 16;
    way = &add("offloaded in chunks");
    way->options.kv_offload = KvOffload::chunked;
    way->options.resident_blocks = 0;
    way->options.transfer_block = 16;
    way->options.ring_slots = 3;
    way->exception = "partial results of the chunks are combined by their log-sum-exp";
    add_chunks("invariant, ", {.block = 16, .ring = 3, .resident = 0, .rows = rows_});
    if (rows_ < kManyRows) return;
    add_chunks("invariant, prefixes cached, ",
               {.block = 48, .ring = 2, .resident = 20, .rows = 100})
        .prompts_first = true;
    add_chunks("invariant, ", {.block = 112, .ring = 16, .resident = 0, .rows = 7});
  }

  // Whether there are keys and values in chunks, and invariant results of these.
  bool in_chunks() const {
    return model_.config.windows.empty() && !model_.config.differs_in_heads() && !on_gpu();
  }

  // rows: of a step, at most.
  struct Chunks {
    std::int64_t block, ring, resident, rows;
  };
  Way& add_chunks(const std::string& prefix, const Chunks& chunks) {
    Way& way = add(str(prefix, "offloaded in chunks of ", chunks.block, ", a ring of ", chunks.ring,
                       ", ", chunks.resident, " chunks stay"));
    EngineOptions& options = way.options;
    options.invariance = model_.tp_invariant ? Invariance::tp : Invariance::batch;
    options.kv_offload = KvOffload::chunked;
    options.transfer_block = chunks.block;
    options.ring_slots = chunks.ring;
    options.resident_blocks = chunks.resident;
    options.max_num_batched_tokens = std::min(chunks.rows, rows_);
    options.max_num_seqs = std::min(options.max_num_seqs, options.max_num_batched_tokens);
    way.loads = true;
    return way;
  }

  // A cache that holds little more than one sequence. If layers with a window form a group of their
  // own, this holds for the other group, and the window group has as many bytes.
  void make_tiny(Way& way) const {
    way.options.block_size = 4;  // so that generation soon needs more blocks
    const model::ModelConfig& config = model_.config;
    const layers::Shard shard{.rank = 0, .ranks = way.ranks, .tp_invariant = model_.tp_invariant};
    const model::Decoder decoder(config, shard, model_.dtype);
    const auto token =
        static_cast<std::int64_t>(decoder.block_shape(/*block_size=*/1, model_.dtype).kv_bytes());
    way.options.kv_cache_memory_bytes = (kMaxModelLen + 16) * token;
    if (is_hybrid() && way.options.prefix_caching) {
      constexpr std::int64_t kSnapshots = 4;
      way.options.state_snapshots = kSnapshots;
      *way.options.kv_cache_memory_bytes +=
          kSnapshots * static_cast<std::int64_t>(model::DecoderMemory::state_bytes(decoder, 1));
    }
    if (config.window_group() == 0) return;
    const std::int64_t all = std::ranges::count(config.windows, 0);
    const auto block_bytes = [&](std::int64_t layers) {
      const std::int64_t id = sizeof(std::int32_t);
      return way.options.block_size * (token / config.layers * layers + id);
    };
    const std::int64_t bytes = (kMaxModelLen + 16) / way.options.block_size * block_bytes(all);
    const std::int64_t window_block = block_bytes(config.layers - all);
    way.options.kv_cache_memory_bytes = bytes + bytes / window_block * window_block;
  }

  const OpenModel& model_;
  const std::int64_t rows_;
  std::vector<Way> ways_;
};

std::vector<Request> random_requests(const OpenModel& model, std::uint32_t seed) {
  RandomRequests random({.vocabulary = model.config.vocab_size,
                         .max_prompt = kMaxPrompt,
                         .max_answer = kMaxAnswer,
                         .features = 0.5},
                        seed);
  const std::int64_t usual = on_gpu() ? kGpuRequests : kRequests;
  std::vector<Request> requests =
      random.next(model.tp_invariant && ranks_share_gpus() ? kFewRequests : usual);
  std::mt19937 tokens(seed);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    request.sampling.logprobs = 3;
    if (i >= 4) continue;
    // The first requests are long: two of them fill a tiny cache before they finish.
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

// Whether the configuration took effect: with some requests there is no sequence to preempt.
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
  if (way.prompts_first) CHECK(statistics.prefix.hit_tokens > 0);
  if (way.loads) CHECK(engine.client().statistics().kv_bytes_to_device > 0);
  engine.stop();
  return way.happened == nullptr || statistics.*way.happened > 0;
}

// Runs these configurations with new requests; returns those that did not take effect.
std::vector<Way> check_ways(const OpenModel& model, const std::vector<Way>& ways,
                            std::int64_t rows) {
  const std::uint32_t seed = std::random_device()();
  std::cout << name_of(model.dtype) << ", seed " << seed << "\n";
  const std::vector<Request> requests = random_requests(model, seed);
  const Answers right = plain_answers(model, requests, usual(model, rows));
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
  check_until_taken(model, Ways(model, rows).all(), rows);
}

// With --invariant tp: the answers must equal those of one rank.
void check_all_ranks(OpenModel model, std::int64_t rows) {
  model.tp_invariant = true;
  check_until_taken(model, Ways(model, rows).with_ranks(), rows);
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

TEST_CASE("weights in fp8: the same bits while steps have few rows, whichever way") {
  WITHOUT_SANITIZERS();
  if (on_gpu()) SKIP_TEST("quantized weights are refused there");
  check_all_ways("tests/data/golden-models/qwen3-fp8-block", kFewRows);
}

TEST_CASE("weights in int4: the same bits while steps have few rows, whichever way") {
  WITHOUT_SANITIZERS();
  if (on_gpu()) SKIP_TEST("quantized weights are refused there");
  check_all_ways("tests/data/golden-models/qwen3-awq", kFewRows);
}

TEST_CASE("experts in mxfp4: the same bits while steps have few rows, whichever way") {
  WITHOUT_SANITIZERS();
  if (on_gpu()) SKIP_TEST("quantized weights are refused there");
  check_all_ways("tests/data/golden-models/gptoss-mxfp4", kFewRows);
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

TEST_CASE("weights in fp8: the same bits with any number of ranks while steps have few rows") {
  if (on_gpu()) SKIP_TEST("quantized weights are refused there");
  WITHOUT_SANITIZERS();
  check_all_ranks("tests/data/golden-models/qwen3-fp8-block", kFewRows);
}

// Segments hold 128 inputs in the MLP, whose weights stay quantized, and fewer in attention.
TEST_CASE("weights in int4: the same bits with any number of ranks while steps have few rows") {
  if (on_gpu()) SKIP_TEST("quantized weights are refused there");
  check_all_ranks(open_model({.path = "tests/data/golden-models/qwen3-awq",
                              .format = LoadFormat::dummy,
                              .overrides = R"({"intermediate_size": 1024})",
                              .dtype = DType::bf16}),
                  kFewRows);
}

TEST_CASE("experts in mxfp4: the same bits with any number of ranks while steps have few rows") {
  if (on_gpu()) SKIP_TEST("quantized weights are refused there");
  WITHOUT_SANITIZERS();
  check_all_ranks("tests/data/golden-models/gptoss-mxfp4", kFewRows);
}

}  // namespace
}  // namespace nvllm::runtime
