// Chunked offload in the runner, attending to whole sequences, as with invariant results: the bits
// of a paged cache, whatever blocks and ring there are, and whatever stays on the device.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/runner/testing/runner_fixture.h"
#include "runtime/runner/testing/runner_scripts.h"
#include "testing/sanitizers.h"

namespace nvllm::runtime {
namespace {

using kvcache::KvTraffic;
using testing::DeviceRank;

// On CPUs results are invariant by themselves.
bool invariant() {
  return testing::device_under_test() == DeviceKind::cuda;
}

RunnerTestOptions whole(std::int64_t ring_slots, std::int64_t block_size,
                        std::int64_t resident = 0) {
  RunnerTestOptions options = chunked(ring_slots, block_size);
  options.invariant = invariant();
  options.whole_sequences = true;
  options.resident = resident;
  return options;
}

// By slot: the bits of log-probabilities.
using Bits = std::map<std::uint32_t, std::vector<std::uint32_t>>;

// The log-probabilities of all tokens of three prompts that run together, and of some more.
Bits bits_of(DeviceRank& rank, const GoldenModel& golden, const RunnerTestOptions& options,
             std::int64_t chunk) {
  RunnerUnderTest runner(rank, golden, options);
  layers::SamplingRules rules = greedy();
  rules.logprobs = 0;
  for (std::uint32_t slot = 0; slot < 3; ++slot) {
    runner.start(slot, golden.prompts[slot].ids, {}, rules, 0);
    // One of them stays as far as there is room, one in part, one not at all.
    runner.keep(options.resident / (slot + 1));
  }
  runner.prefill(chunk);
  runner.decode(20);
  runner.finish();
  Bits prompts, answers;
  for (const StepResult& result : runner.results()) {
    for (const StepResult::PromptLogprobs& prompt : result.prompts) {
      for (const TokenLogprobs& token : prompt.tokens)
        prompts[prompt.slot].push_back(std::bit_cast<std::uint32_t>(token.chosen.logprob));
    }
    for (const StepResult::Token& token : result.tokens) {
      answers[token.slot].push_back(std::bit_cast<std::uint32_t>(token.logprobs.chosen.logprob));
    }
  }
  // Whoever had a short prompt has decoded more tokens meanwhile.
  for (auto& [slot, bits] : answers) {
    REQUIRE(bits.size() >= 20);
    bits.resize(20);
    prompts[slot].insert(prompts[slot].end(), bits.begin(), bits.end());
  }
  return prompts;
}

struct Sizes {
  std::int64_t ring, block, resident, chunk;
};

constexpr Sizes kSizes[] = {{2, 4, 0, 40},    {16, 4, 20, 40}, {3, 16, 0, 7},   {2, 16, 1, 1},
                            {5, 16, 5, 224},  {2, 48, 0, 40},  {2, 48, 2, 100}, {3, 112, 0, 224},
                            {2, 224, 0, 100}, {2, 16, 14, 40}};

Bits bits_of_paged(DeviceRank& rank, const GoldenModel& golden, RunnerTestOptions paged) {
  paged.invariant = invariant();
  return bits_of(rank, golden, paged, 224);
}

// right: bits_of_paged()
void check_bits(DeviceRank& rank, const GoldenModel& golden, const RunnerTestOptions& paged,
                const Sizes& sizes, const Bits& right) {
  CAPTURE(sizes.ring);
  CAPTURE(sizes.block);
  CAPTURE(sizes.resident);
  CAPTURE(sizes.chunk);
  RunnerTestOptions options = whole(sizes.ring, sizes.block, sizes.resident);
  options.dtype = paged.dtype;
  options.kv_cache_dtype = paged.kv_cache_dtype;
  options.graphs = sizes.ring % 2 == 0;
  options.hooks = slow_at_random(static_cast<unsigned>(sizes.block));
  CHECK(bits_of(rank, golden, options, sizes.chunk) == right);
}

TEST_CASE("whole sequences: the bits of a paged cache, whatever blocks, ring and residents") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kUnevenModel);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      if (testing::kSanitized && dtype == DType::f32) continue;  // the accesses are the same
      CAPTURE(name_of(dtype));
      const RunnerTestOptions paged{.dtype = dtype};
      const Bits right = bits_of_paged(rank, golden, paged);
      for (const Sizes& sizes : kSizes) check_bits(rank, golden, paged, sizes, right);
    }
    const GoldenModel mixture("qwen3moe-dense-layer");
    const RunnerTestOptions paged{.dtype = DType::bf16};
    check_bits(rank, mixture, paged, {3, 16, 2, 40}, bits_of_paged(rank, mixture, paged));
  });
}

TEST_CASE("whole sequences: the bits of a paged cache in 8 bits") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const RunnerTestOptions paged{.dtype = DType::bf16, .kv_cache_dtype = KvCacheDtype::fp8_e4m3};
    const GoldenModel golden("mistral-hd128");
    check_bits(rank, golden, paged, {2, 16, 2, 40}, bits_of_paged(rank, golden, paged));
  });
}

// What the test above would not notice if parts had the same bits.
TEST_CASE("whole sequences: parts have other bits") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kUnevenModel);
    RunnerTestOptions parts = chunked(3, 16);
    parts.invariant = invariant();
    CHECK(bits_of(rank, golden, parts, 40) !=
          bits_of(rank, golden, {.invariant = invariant()}, 40));
  });
}

TEST_CASE("whole sequences: transformers' tokens, with graphs and without, on 1 to 4 ranks") {
  struct Case {
    const char* model;
    int ranks;
    std::int64_t ring, resident;
    bool graphs;
  };
  for (const Case& each :
       {Case{kUnevenModel, 1, 2, 0, true}, Case{kUnevenModel, 2, 3, 2, true},
        Case{kUnevenModel, 3, 16, 0, false}, Case{kUnevenModel, 4, 2, 1, true},  // one has no heads
        Case{"llama-tied", 1, 3, 1, true}, Case{"mixtral", 2, 2, 0, true}}) {
    RANKS_OR_SKIP(each.ranks);
    CAPTURE(each.model);
    CAPTURE(each.ranks);
    testing::run_on_devices(each.ranks, [&](DeviceRank& rank) {
      RunnerTestOptions options = whole(each.ring, 16, each.resident);
      options.graphs = each.graphs;
      options.steps_ahead = each.graphs ? 2 : 0;
      KvTraffic traffic;
      CHECK(continue_all(rank, GoldenModel(each.model), options, 40, &traffic) == "");
      if (rank.member.rank() == 0) CHECK(traffic.to_device > 0);
    });
  }
}

TEST_CASE("whole sequences: they come and go, in slots and blocks that others had a step before") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kUnevenModel);
    RunnerTestOptions options = whole(2, 16, 3);
    for (const bool graphs : {true, false}) {
      options.graphs = graphs;
      options.hooks = slow_at_random(5);
      check_come_and_go(rank, golden, options, 2);
    }
  });
}

TEST_CASE("whole sequences: one that ends leaves the others of its graph their own blocks") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kUnevenModel);
    const auto& prompt = golden.prompts[2];
    const auto length = static_cast<std::int64_t>(prompt.ids.size());
    const std::int64_t block = 16, shared = (length - 1) / block;
    RunnerUnderTest runner(rank, golden, whole(3, block));
    runner.start(0, prompt.ids).rows(0, length).step();
    const std::vector<kvcache::BlockId> blocks = runner.blocks(0);
    for (const std::uint32_t slot : {1u, 2u, 3u}) {
      runner.start(slot, prompt.ids, {blocks.begin(), blocks.begin() + shared});
      runner.rows(slot, length - shared * block);
    }
    runner.step();
    // Their common blocks are loaded once, as they follow one another.
    const KvTraffic before = runner.runner().kv_traffic();
    runner.decode(1);
    CHECK(runner.runner().kv_traffic().to_device - before.to_device ==
          static_cast<std::uint64_t>(shared) * runner.runner().block_shape().kv_bytes());
    runner.decode(3);                        // as a graph at last
    runner.end(0).decode(kDecodeSteps - 4);  // three, in a graph for four, too
    runner.finish();
    for (const std::uint32_t slot : {1u, 2u, 3u}) {
      CHECK(why_not_golden(prompt, runner.tokens(slot), 0) == "");
      CHECK(std::ssize(runner.tokens(slot)) == kDecodeSteps + 1);
    }
  });
}

}  // namespace
}  // namespace nvllm::runtime
