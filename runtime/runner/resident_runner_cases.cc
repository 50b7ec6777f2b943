// Chunked offload with blocks that stay on the device: the same continuations, the predicted number
// of bytes copied, and slots that are reused.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "runtime/runner/testing/runner_fixture.h"
#include "runtime/runner/testing/runner_scripts.h"
#include "testing/sanitizers.h"

namespace nvllm::runtime {
namespace {

using testing::DeviceRank;

TEST_CASE(
    "resident: blocks that stay give the same tokens, all of them or the first, on 1 to 4 ranks") {
  struct Case {
    int ranks;
    std::int64_t resident, ring;
    bool graphs;
  };
  int number = 0;
  for (const Case& each : {Case{1, 14, 2, true}, Case{1, 14, 2, false}, Case{1, 1, 2, true},
                           Case{1, 5, 3, false}, Case{2, 14, 2, true}, Case{2, 3, 2, true},
                           Case{3, 8, 2, false}, Case{4, 4, 2, true}}) {  // one rank has no heads
    // Sanitizers see the same accesses in each of them.
    if (testing::kSanitized && number++ % 3 != 1) continue;
    RANKS_OR_SKIP(each.ranks);
    CAPTURE(each.ranks);
    CAPTURE(each.resident);
    testing::run_on_devices(each.ranks, [&](DeviceRank& rank) {
      RunnerTestOptions options = chunked(each.ring, 16);
      options.resident = each.resident;
      options.graphs = each.graphs;
      options.steps_ahead = each.graphs ? 2 : 0;
      CHECK(continue_all(rank, GoldenModel(kUnevenModel), options, 40) == "");
    });
  }
}

TEST_CASE("resident: what stays is written to the host once, and never comes back") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kUnevenModel);
    for (const std::int64_t resident : {13, 11, 1}) {  // all of them; some
      CAPTURE(resident);
      check_traffic(rank, golden, resident);
    }
  });
}

TEST_CASE(
    "resident: beside sequences in chunks, with a prefix of one of these and the other way round") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kUnevenModel);
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
        // The first sequence's blocks that were not kept are still in slots that no other sequence
        // needed.
        CHECK(to_device() == 0);
        runner.rows(0, 1).rows(1, 1).step();
        CHECK(to_device() == 0);  // both read blocks of the sequence that keeps them
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
    const GoldenModel golden(kUnevenModel);
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
    // Other sequences take every slot that was free.
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
    const GoldenModel golden(kUnevenModel);
    for (const std::int64_t resident : {2, 14}) {
      CAPTURE(resident);
      RunnerTestOptions options = chunked(2, 16);
      options.resident = resident;
      options.hooks = slow_at_random(static_cast<unsigned>(resident));
      check_come_and_go(rank, golden, options, 1);
    }
  });
}

// Each of three slots in turn gets another sequence, whose prefix a running sequence has computed
// or not, and which keeps some blocks or none, with the smallest possible number of device slots.
TEST_CASE("resident: slots come back from hundreds of sequences that come and go at random") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kUnevenModel);
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
        const auto max_blocks = (static_cast<std::int64_t>(prompt.size()) - 1) / block;
        prefix.assign(blocks.begin(), blocks.begin() + below(max_blocks + 1));
      }
      runner.start(slot, prompt, prefix).keep(below(options.resident + 1));
      prompt_of[slot] = which;
      runner.prefill(1 + below(70));
      runner.decode(static_cast<int>(below(4)));
    }
    runner.finish();
  });
}

}  // namespace
}  // namespace nvllm::runtime
