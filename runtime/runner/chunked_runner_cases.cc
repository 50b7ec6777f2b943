// Chunked offload in the runner: transformers' continuations with any ring, block and chunk size;
// the predicted number of bytes is copied; delayed copies do not change results, and tests fail if
// any of the waits is left out.
#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <vector>

#include "kvcache/chunked/load_ring.h"
#include "runtime/runner/testing/runner_fixture.h"
#include "runtime/runner/testing/runner_scripts.h"
#include "testing/sanitizers.h"

namespace nvllm::runtime {
namespace {

using kvcache::KvTraffic;
using kvcache::OffloadWait;
using kvcache::Transfer;
using testing::DeviceRank;

TEST_CASE(
    "chunked: any ring gives transformers' tokens, with graphs and without, on 1 to 4 ranks") {
  struct Case {
    int ranks;
    std::int64_t ring;
    bool graphs;
  };
  int number = 0;
  for (const Case& each : {Case{1, 2, true}, Case{1, 2, false}, Case{1, 3, true}, Case{1, 4, false},
                           Case{1, 8, true}, Case{1, 5, false}, Case{1, 16, true}, Case{2, 3, true},
                           Case{3, 6, true}, Case{4, 2, false}}) {  // one rank has no heads
    // Sanitizers see the same accesses in each of them.
    if (testing::kSanitized && number++ % 3 != 1) continue;
    RANKS_OR_SKIP(each.ranks);
    CAPTURE(each.ranks);
    CAPTURE(each.ring);
    testing::run_on_devices(each.ranks, [&](DeviceRank& rank) {
      RunnerTestOptions options = chunked(each.ring, 16);
      options.graphs = each.graphs;
      options.steps_ahead = each.graphs ? 2 : 0;
      CHECK(continue_all(rank, GoldenModel(kUnevenModel), options, 40) == "");
    });
  }
}

// Log-probabilities of a prompt in blocks of 4 tokens, most of which are read through the ring, and
// of some tokens after it.
std::vector<float> logprobs_by(DeviceRank& rank, const GoldenModel& golden,
                               const RunnerTestOptions& options) {
  RunnerUnderTest runner(rank, golden, options);
  runner.start(0, golden.prompts[2].ids, {}, greedy(), 0);
  runner.prefill(40);
  runner.decode(5);
  runner.finish();
  std::vector<float> all;
  for (const StepResult& result : runner.results()) {
    for (const auto& prompt : result.prompts) {
      for (const TokenLogprobs& token : prompt.tokens) all.push_back(token.chosen.logprob);
    }
  }
  return all;
}

TEST_CASE("chunked: no bit depends on the ring from 16 slots on, or on when copies are done") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kUnevenModel);
    const std::vector<float> right = logprobs_by(rank, golden, chunked(16, 4));
    CHECK(right.size() + 1 >= golden.prompts[2].ids.size());
    for (const std::int64_t ring : {16, 17, 30}) {
      CAPTURE(ring);
      RunnerTestOptions options = chunked(ring, 4);
      options.hooks = slow_at_random(static_cast<unsigned>(ring));
      CHECK(logprobs_by(rank, golden, options) == right);
    }
    CHECK(logprobs_by(rank, golden, chunked(4, 4)) != right);  // attention in other parts gives
                                                               // other bits
  });
}

TEST_CASE("chunked: blocks and chunks of any size, one inside the other or not") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kUnevenModel);
    struct Sizes {
      std::int64_t block, chunk;
    };
    int number = 0;
    for (const Sizes& sizes : {Sizes{4, 15}, Sizes{16, 15}, Sizes{16, 16}, Sizes{16, 17},
                               Sizes{16, kWhole}, Sizes{48, 40}, Sizes{224, 40}}) {
      // Sanitizers see the same accesses in each of them.
      if (testing::kSanitized && number++ % 3 != 0) continue;
      CAPTURE(sizes.block);
      CAPTURE(sizes.chunk);
      CHECK(continue_all(rank, golden, chunked(2, sizes.block), sizes.chunk) == "");
    }
  });
}

TEST_CASE("chunked: as many bytes move as blocks are read and filled") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(
      1, [](DeviceRank& rank) { check_traffic(rank, GoldenModel(kUnevenModel), 0); });
}

TEST_CASE(
    "chunked: a prefix is shared inside the step that computes it, and later read once for all") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kUnevenModel);
    const auto& prompt = golden.prompts[2];
    const auto length = static_cast<std::int64_t>(prompt.ids.size());
    const std::int64_t block = 16, shared = (length - 1) / block;
    for (const bool at_once : {true, false}) {
      CAPTURE(at_once);
      RunnerUnderTest runner(rank, golden, chunked(3, block));
      runner.start(0, prompt.ids).rows(0, length);
      if (!at_once) runner.step();
      const auto& blocks = runner.blocks(0);
      runner.start(1, prompt.ids, {blocks.begin(), blocks.begin() + shared});
      runner.rows(1, length - shared * block).step();
      const KvTraffic before = runner.runner().kv_traffic();
      runner.start(2, prompt.ids, {blocks.begin(), blocks.begin() + shared});
      runner.rows(0, 1).rows(1, 1).rows(2, length - shared * block).step();
      const KvTraffic after = runner.runner().kv_traffic();
      CHECK(after.to_device - before.to_device ==
            static_cast<std::uint64_t>(shared) * runner.runner().block_shape().kv_bytes());
      runner.decode(20);
      runner.end(0).decode(20);  // others go on reading what it computed
      runner.finish();
      for (const std::uint32_t slot : {1u, 2u}) {
        CHECK(why_not_golden(prompt, runner.tokens(slot), 0) == "");
        CHECK(runner.tokens(slot).size() >= 40);
      }
    }
  });
}

TEST_CASE("chunked: sequences come and go, in slots and blocks that others had a step before") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kUnevenModel);
    RunnerTestOptions options = chunked(2, 16);
    check_come_and_go(rank, golden, options);
  });
}

TEST_CASE("chunked: copies that take any time change nothing") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kUnevenModel);
    for (const unsigned seed : {1u, 2u}) {
      RunnerTestOptions options = chunked(3, 48);
      options.hooks = slow_at_random(seed);
      options.steps_ahead = 2;
      CHECK(continue_all(rank, golden, options, 40) == "");
    }
  });
}

// A wait, and steps that need it: `time` says how long copies take, so that work which does not
// wait runs too early.
struct LeftOut {
  OffloadWait wait;
  std::chrono::microseconds load, write;
  void (*run)(RunnerUnderTest&, const GoldenModel&);  // slot 0 runs the last prompt and some tokens
};

// Alternates prefill, and decode in graphs.
void run_in_turn(RunnerUnderTest& runner, const GoldenModel& golden) {
  runner.start(0, golden.prompts[2].ids);
  runner.prefill(40);
  runner.decode(6);
  runner.start(1, golden.prompts[2].ids);
  for (int i = 0; i < 3; ++i) runner.rows(0, 1).rows(1, 33).step();
  runner.end(1);
  for (int i = 0; i < 4; ++i) {
    runner.decode(3);  // two of them are graphs
    runner.start(1, golden.prompts[2].ids).rows(0, 1).rows(1, 33).step();
    runner.end(1);
  }
  runner.decode(4);
}

// Other sequences fill all device slots while a sequence's first blocks are being written out. None
// of them loads anything, since its loads would wait for these blocks.
void run_short_prompts(RunnerUnderTest& runner, const GoldenModel& golden) {
  const std::vector<std::int32_t>& prompt = golden.prompts[2].ids;
  const std::vector<std::int32_t> other(prompt.rbegin(), prompt.rbegin() + 33);
  runner.start(0, prompt).rows(0, 32).step();
  for (int i = 0; i < 6; ++i) {
    runner.start(1, other).rows(1, 32).step();
    runner.end(1);
  }
  runner.prefill(32);
  runner.decode(6);
}

std::vector<LeftOut> all_waits() {
  using std::chrono::microseconds;
  const microseconds none(0), some(300), long_time(3000);
  return {
      {OffloadWait::load_of_slot, none, none, run_in_turn},
      {OffloadWait::attention_of_load, some, none, run_in_turn},
      {OffloadWait::write_of_store, none, none, run_in_turn},
      {OffloadWait::load_of_write, none, long_time, run_in_turn},
      {OffloadWait::store_of_write, none, microseconds(10000), run_short_prompts},
      {OffloadWait::loads_of_graph, none, none, run_in_turn},
  };
}

// Runs alternate between graphs and no graphs.
std::string wrong_without(DeviceRank& rank, const GoldenModel& golden, std::size_t which,
                          std::uint32_t left_out, int run) {
  const LeftOut each = all_waits()[which];
  RunnerTestOptions options = chunked(2, 16);
  options.slots = 2;  // few slots, so that they are reused soon
  options.rows = 40;
  options.logit_rows = 40;
  options.graphs = run % 2 == 0;
  options.steps_ahead = 2;
  options.hooks = slow([each, factor = slowness(run)](Transfer what) {
    return factor * (what == Transfer::to_device ? each.load : each.write);
  });
  options.hooks.left_out = left_out;
  RunnerUnderTest runner(rank, golden, options);
  each.run(runner, golden);
  runner.finish();
  return why_not_golden(golden.prompts[2], runner.tokens(0), 0);
}

TEST_CASE("chunked: waits that are left out are missed") {
  CHECK(all_waits().size() == kvcache::kOffloadWaits);
  check_waits_are_missed(kUnevenModel, waits_of(all_waits()), wrong_without, 40);
}

constexpr const char* kRacing = "chunked: ThreadSanitizer finds each wait that is left out";

TEST_CASE(kRacing) {
  find_races(kRacing, kUnevenModel, waits_of(all_waits()), wrong_without);
}

}  // namespace
}  // namespace nvllm::runtime
