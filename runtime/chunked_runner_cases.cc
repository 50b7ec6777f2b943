// Chunked offload in the runner: transformers' continuations with any ring, blocks and chunks; bytes moved as
// predicted; copies that take their time change nothing, and each wait that is left out is missed.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "kvcache/offload_waits.h"
#include "runtime/runner_fixture.h"
#include "runtime/runner_scripts.h"
#include "testing/sanitizers.h"

namespace nvllm::runtime {
namespace {

using kvcache::KvTraffic;
using kvcache::OffloadWait;
using kvcache::Transfer;
using testing::DeviceRank;

constexpr const char* kModel = "qwen3-uneven";  // 9 heads, 3 KV heads
constexpr std::int64_t kWhole = 1 << 20;

TEST_CASE(
    "chunked: any ring gives transformers' tokens, with graphs and without, on 1 to 4 ranks") {
  struct Case {
    int ranks;
    std::int64_t ring;
    bool graphs;
  };
  for (const Case& each :
       {Case{1, 2, true}, Case{1, 2, false}, Case{1, 3, true}, Case{1, 4, false}, Case{1, 8, true},
        Case{2, 3, true}, Case{3, 2, true}, Case{4, 2, false}}) {  // one has no heads
    RANKS_OR_SKIP(each.ranks);
    CAPTURE(each.ranks);
    CAPTURE(each.ring);
    testing::run_on_devices(each.ranks, [&](DeviceRank& rank) {
      RunnerTestOptions options = chunked(each.ring, 16);
      options.graphs = each.graphs;
      options.steps_ahead = each.graphs ? 2 : 0;
      CHECK(continue_all(rank, GoldenModel(kModel), options, 40) == "");
    });
  }
}

TEST_CASE("chunked: blocks and chunks of any size, one inside the other or not") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kModel);
    struct Sizes {
      std::int64_t block, chunk;
    };
    for (const Sizes& sizes : {Sizes{4, 15}, Sizes{16, 15}, Sizes{16, 16}, Sizes{16, 17},
                               Sizes{16, kWhole}, Sizes{48, 40}, Sizes{224, 40}}) {
      CAPTURE(sizes.block);
      CAPTURE(sizes.chunk);
      CHECK(continue_all(rank, golden, chunked(2, sizes.block), sizes.chunk) == "");
    }
  });
}

TEST_CASE("chunked: as many bytes move as blocks are read and filled") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kModel);
    const std::int64_t block = 16;
    RunnerUnderTest runner(rank, golden, chunked(2, block));
    const std::uint64_t bytes = runner.runner().block_shape().kv_bytes();
    KvTraffic expected;
    const auto row = [&](std::int64_t first, std::int64_t rows) {
      expected.to_device += static_cast<std::uint64_t>(first / block) * bytes;
      expected.to_host +=
          static_cast<std::uint64_t>((first + rows) / block - first / block) * bytes;
    };
    const std::vector<std::int32_t>& prompt = golden.prompts[2].ids;
    const auto length = static_cast<std::int64_t>(prompt.size());
    REQUIRE(length > 100);
    runner.start(0, prompt).rows(0, 33).step();
    row(0, 33);
    CHECK(runner.runner().kv_traffic() == expected);
    runner.rows(0, length - 33).step();
    row(33, length - 33);
    CHECK(runner.runner().kv_traffic() == expected);
    runner.decode(kDecodeSteps);
    for (int step = 0; step < kDecodeSteps; ++step) row(length + step, 1);
    CHECK(runner.runner().kv_traffic() == expected);
    runner.finish();
    CHECK(why_not_golden(golden.prompts[2], runner.tokens(0), 0) == "");
  });
}

TEST_CASE(
    "chunked: a prefix is shared inside the step that computes it, and later read once for all") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kModel);
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
    const GoldenModel golden(kModel);
    RunnerTestOptions options = chunked(2, 16);
    options.slots = 3;
    options.blocks = 30;
    options.steps_ahead = 2;
    RunnerUnderTest runner(rank, golden, options);
    const auto& prompts = golden.prompts;
    come_and_go(runner, prompts);
    runner.start(0, prompts[0].ids).rows(0, 7).rows(1, 1).rows(2, 1).step();
    runner.decode(20);
    runner.finish();
    CHECK(why_not_golden(prompts[0], runner.tokens(0), 0) == "");
    CHECK(why_not_golden(prompts[1], runner.tokens(1), 0) == "");
    CHECK(why_not_golden(prompts[1], runner.tokens(2), 0) == "");
  });
}

TEST_CASE(
    "resident: blocks that stay give the same tokens, all of them or the first, on 1 to 4 ranks") {
  struct Case {
    int ranks;
    std::int64_t resident, ring;
    bool graphs;
  };
  for (const Case& each : {Case{1, 14, 2, true}, Case{1, 14, 2, false}, Case{1, 1, 2, true},
                           Case{1, 5, 3, false}, Case{2, 14, 2, true}, Case{2, 3, 2, true},
                           Case{3, 8, 2, false}, Case{4, 4, 2, true}}) {  // one has no heads
    RANKS_OR_SKIP(each.ranks);
    CAPTURE(each.ranks);
    CAPTURE(each.resident);
    testing::run_on_devices(each.ranks, [&](DeviceRank& rank) {
      RunnerTestOptions options = chunked(each.ring, 16);
      options.resident = each.resident;
      options.graphs = each.graphs;
      options.steps_ahead = each.graphs ? 2 : 0;
      CHECK(continue_all(rank, GoldenModel(kModel), options, 40) == "");
    });
  }
}

TEST_CASE("resident: what stays is written to the host once, and never comes back") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kModel);
    const std::int64_t block = 16;
    const std::vector<std::int32_t>& prompt = golden.prompts[2].ids;
    const auto length = static_cast<std::int64_t>(prompt.size());
    const std::int64_t needed = (length + kDecodeSteps + block - 1) / block;
    for (const std::int64_t resident : {needed, needed - 2, std::int64_t{1}}) {
      CAPTURE(resident);
      RunnerTestOptions options = chunked(2, block);
      options.resident = resident;
      RunnerUnderTest runner(rank, golden, options);
      const std::uint64_t bytes = runner.runner().block_shape().kv_bytes();
      KvTraffic expected;
      const auto row = [&](std::int64_t first, std::int64_t rows) {
        expected.to_device +=
            static_cast<std::uint64_t>(std::max<std::int64_t>(first / block - resident, 0)) * bytes;
        expected.to_host +=
            static_cast<std::uint64_t>((first + rows) / block - first / block) * bytes;
      };
      runner.start(0, prompt).rows(0, 33).step();
      row(0, 33);
      runner.rows(0, length - 33).step();
      row(33, length - 33);
      runner.decode(kDecodeSteps);
      for (int step = 0; step < kDecodeSteps; ++step) row(length + step, 1);
      CHECK(runner.runner().kv_traffic() == expected);
      runner.finish();
      CHECK(why_not_golden(golden.prompts[2], runner.tokens(0), 0) == "");
    }
  });
}

TEST_CASE(
    "resident: beside sequences in chunks, with a prefix of one of these and the other way round") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kModel);
    const auto& prompt = golden.prompts[2];
    const auto length = static_cast<std::int64_t>(prompt.ids.size());
    const std::int64_t block = 16, shared = (length - 1) / block;
    for (const bool first_stays : {true, false}) {
      for (const bool at_once : {true, false}) {
        CAPTURE(first_stays);
        CAPTURE(at_once);
        RunnerTestOptions options = chunked(3, block);
        options.resident = 14;
        RunnerUnderTest runner(rank, golden, options);
        const std::uint64_t prefix =
            static_cast<std::uint64_t>(shared) * runner.runner().block_shape().kv_bytes();
        const auto to_device = [&] { return runner.runner().kv_traffic().to_device; };
        runner.start(0, prompt.ids).keep(first_stays ? 14 : 0).rows(0, length);
        if (!at_once) runner.step();
        const auto& blocks = runner.blocks(0);
        runner.start(1, prompt.ids, {blocks.begin(), blocks.begin() + shared});
        runner.keep(first_stays ? 0 : 14).rows(1, length - shared * block).step();
        // What the first one has computed and not kept is still there, in slots that nobody else needed.
        CHECK(to_device() == 0);
        runner.rows(0, 1).rows(1, 1).step();
        CHECK(to_device() == 0);  // both read the blocks of the one that keeps them
        runner.decode(12);
        runner.end(first_stays ? 0 : 1);
        const std::uint64_t before = to_device();
        runner.decode(1);
        CHECK(to_device() - before >= prefix);
        runner.decode(19);
        runner.finish();
        const std::uint32_t left = first_stays ? 1 : 0;
        CHECK(why_not_golden(prompt, runner.tokens(left), 0) == "");
        CHECK(runner.tokens(left).size() >= 33);
      }
    }
  });
}

TEST_CASE("resident: a prefix that is only on the host comes back once") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kModel);
    const auto& prompt = golden.prompts[2];
    const auto length = static_cast<std::int64_t>(prompt.ids.size());
    const std::int64_t block = 16, shared = (length - 1) / block;
    RunnerTestOptions options = chunked(2, block);
    options.slots = 2;
    options.rows = 40;
    options.logit_rows = 40;
    options.resident = 14;
    options.steps_ahead = 2;
    options.hooks = slow_at_random(3);
    RunnerUnderTest runner(rank, golden, options);
    const std::uint64_t bytes = runner.runner().block_shape().kv_bytes();
    runner.start(0, prompt.ids).keep(0);
    runner.prefill(40);
    // Others take every slot that was free.
    for (int i = 0; i < 3; ++i) {
      runner.start(1, golden.prompts[2].ids);
      while (runner.blocks(1).size() < 9) runner.rows(1, 16).step();
      runner.end(1);
    }
    const std::uint64_t before = runner.runner().kv_traffic().to_device;
    const auto& blocks = runner.blocks(0);
    runner.start(1, prompt.ids, {blocks.begin(), blocks.begin() + shared});
    runner.rows(1, length - shared * block).step();
    CHECK(runner.runner().kv_traffic().to_device - before ==
          static_cast<std::uint64_t>(shared) * bytes);
    runner.end(0);
    runner.decode(20);
    CHECK(runner.runner().kv_traffic().to_device - before ==
          static_cast<std::uint64_t>(shared) * bytes);
    runner.finish();
    CHECK(why_not_golden(prompt, runner.tokens(1), 0) == "");
  });
}

TEST_CASE("resident: sequences come and go, and copies take any time") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kModel);
    for (const std::int64_t resident : {2, 14}) {
      CAPTURE(resident);
      RunnerTestOptions options = chunked(2, 16);
      options.slots = 3;
      options.blocks = 30;
      options.steps_ahead = 2;
      options.resident = resident;
      options.hooks = slow_at_random(static_cast<unsigned>(resident));
      RunnerUnderTest runner(rank, golden, options);
      const auto& prompts = golden.prompts;
      come_and_go(runner, prompts);
      runner.start(0, prompts[0].ids).keep(1).rows(0, 7).rows(1, 1).rows(2, 1).step();
      runner.decode(20);
      runner.finish();
      CHECK(why_not_golden(prompts[0], runner.tokens(0), 0) == "");
      CHECK(why_not_golden(prompts[1], runner.tokens(1), 0) == "");
      CHECK(why_not_golden(prompts[1], runner.tokens(2), 0) == "");
    }
  });
}

// One of three slots after the other gets another sequence, which begins with what a running one has computed or
// not, and keeps some blocks or none, in as few slots of the device as can do.
TEST_CASE("resident: slots come back from hundreds of sequences that come and go at random") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kModel);
    const std::int64_t block = 16;
    std::mt19937 random(5);
    const auto below = [&](std::int64_t end) {
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end));
    };
    RunnerTestOptions options = chunked(2, block);
    options.slots = 3;
    options.resident = 6;
    options.steps_ahead = 2;
    RunnerUnderTest runner(rank, golden, options);
    std::vector<std::size_t> prompt_of(3, golden.prompts.size());  // none
    for (int i = 0; i < (testing::kSanitized ? 40 : 300); ++i) {
      const auto slot = static_cast<std::uint32_t>(below(3));
      const std::size_t before = prompt_of[slot];
      if (before < golden.prompts.size()) {
        REQUIRE(why_not_golden(golden.prompts[before], runner.tokens(slot), 0) == "");
        runner.end(slot);
      }
      const auto which = static_cast<std::size_t>(below(3));
      const std::vector<std::int32_t>& prompt = golden.prompts[which].ids;
      const auto other = static_cast<std::uint32_t>((slot + 1) % 3);
      std::vector<kvcache::BlockId> prefix;
      if (prompt_of[other] == which && below(3) > 0) {
        const auto& blocks = runner.blocks(other);
        const auto most = (static_cast<std::int64_t>(prompt.size()) - 1) / block;
        prefix.assign(blocks.begin(), blocks.begin() + below(most + 1));
      }
      runner.start(slot, prompt, prefix).keep(below(options.resident + 1));
      prompt_of[slot] = which;
      runner.prefill(1 + below(70));
      runner.decode(static_cast<int>(below(4)));
    }
    runner.finish();
  });
}

TEST_CASE("chunked: copies that take any time change nothing") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kModel);
    for (const unsigned seed : {1u, 2u}) {
      RunnerTestOptions options = chunked(3, 48);
      options.hooks = slow_at_random(seed);
      options.steps_ahead = 2;
      CHECK(continue_all(rank, golden, options, 40) == "");
    }
  });
}

// A wait, in steps that need it: how long copies take, so that who does not wait is early.
struct LeftOut {
  OffloadWait wait;
  std::chrono::microseconds load, write;
  void (*run)(RunnerUnderTest&, const GoldenModel&);  // slot 0 gets the last prompt and some tokens
};

// Decoding, in graphs, and prompts in turn.
void run_in_turn(RunnerUnderTest& runner, const GoldenModel& golden) {
  runner.start(0, golden.prompts[2].ids);
  runner.prefill(40);
  runner.decode(6);
  runner.start(1, golden.prompts[2].ids);
  for (int i = 0; i < 3; ++i) runner.rows(0, 1).rows(1, 33).step();
  runner.end(1);
  runner.decode(20);
}

// Others fill every slot that there is while a sequence's first blocks are on their way out. None of them
// loads anything, or its loads would have waited for these blocks.
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

// Their tokens, by graphs and without them in turn.
std::string wrong_without(DeviceRank& rank, const GoldenModel& golden, std::size_t which,
                          std::uint32_t left_out, int run) {
  const LeftOut each = all_waits()[which];
  RunnerTestOptions options = chunked(2, 16);
  options.slots = 2;  // few slots, which are soon used again
  options.rows = 40;
  options.logit_rows = 40;
  options.graphs = run % 2 == 0;
  options.steps_ahead = 2;
  options.hooks =
      slow([each](Transfer what) { return what == Transfer::to_device ? each.load : each.write; });
  options.hooks.left_out = left_out;
  RunnerUnderTest runner(rank, golden, options);
  each.run(runner, golden);
  runner.finish();
  return why_not_golden(golden.prompts[2], runner.tokens(0), 0);
}

std::vector<OffloadWait> waits() {
  std::vector<OffloadWait> all;
  for (const LeftOut& each : all_waits()) all.push_back(each.wait);
  return all;
}

TEST_CASE("chunked: waits that are left out are missed") {
  CHECK(waits().size() == kvcache::kOffloadWaits);
  check_waits_are_missed(kModel, waits(), wrong_without, 40);
}

constexpr const char* kRacing = "chunked: ThreadSanitizer finds each wait that is left out";

TEST_CASE(kRacing) {
  find_races(kRacing, kModel, waits(), wrong_without);
}

}  // namespace
}  // namespace nvllm::runtime
