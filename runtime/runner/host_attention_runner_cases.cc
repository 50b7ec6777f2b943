// CPU attention in the runner: transformers' continuations with any share of the blocks; the
// predicted number of bytes is copied, and read in place; delays do not change results, and tests
// fail if any of the waits is left out.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/chunked/load_ring.h"
#include "runtime/runner/testing/runner_fixture.h"
#include "runtime/runner/testing/runner_scripts.h"

namespace nvllm::runtime {
namespace {

using kvcache::KvTraffic;
using kvcache::OffloadWait;
using kvcache::Transfer;
using testing::DeviceRank;

RunnerTestOptions with_share(std::optional<double> share, std::int64_t ring_slots = 2,
                             std::int64_t block_size = 16) {
  RunnerTestOptions options = chunked(ring_slots, block_size);
  options.host_attention = share;
  return options;
}

TEST_CASE("host attention: any share, ring and number of threads gives transformers' tokens") {
  RANKS_OR_SKIP(1);
  struct Case {
    double share;
    std::int64_t ring, block, threads;
    bool graphs;
  };
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kUnevenModel);
    for (const Case& each :
         {Case{0, 2, 16, 2, true}, Case{0.3, 3, 16, 1, true}, Case{0.3, 8, 4, 2, false},
          Case{0.5, 2, 16, 3, true}, Case{0.5, 2, 16, 2, false}, Case{1, 2, 16, 2, true},
          Case{1, 3, 48, 2, false}}) {
      CAPTURE(each.share);
      CAPTURE(each.ring);
      CAPTURE(each.graphs);
      RunnerTestOptions options = with_share(each.share, each.ring, each.block);
      options.host_threads = each.threads;
      options.graphs = each.graphs;
      options.steps_ahead = each.graphs ? 2 : 0;
      KvTraffic traffic;
      CHECK(continue_all(rank, golden, options, 40, &traffic) == "");
      CHECK((traffic.by_host > 0) == (each.share > 0));
    }
  });
}

TEST_CASE("host attention: ranks with other heads give transformers' tokens") {
  for (const int ranks : {2, 3}) {
    RANKS_OR_SKIP(ranks);
    CAPTURE(ranks);
    testing::run_on_devices(ranks, [](DeviceRank& rank) {
      CHECK(continue_all(rank, GoldenModel(kUnevenModel), with_share(0.5), 40) == "");
    });
  }
}

TEST_CASE("host attention: the measured share gives transformers' tokens") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    CHECK(continue_all(rank, GoldenModel(kUnevenModel), with_share(std::nullopt), 40) == "");
  });
}

TEST_CASE("host attention: the cores' blocks do not cross, and prompts' blocks do") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kUnevenModel);
    const std::int64_t block = 16;
    struct Case {
      double share;
      std::int64_t taken_of_8;
    };
    // The number of the 8 blocks that minimizes max(taken / share, left / (1 - share)).
    for (const Case& each : {Case{0.3, 2}, Case{0.5, 4}, Case{1, 8}}) {
      CAPTURE(each.share);
      RunnerUnderTest runner(rank, golden, with_share(each.share));
      const std::uint64_t bytes = runner.runner().block_shape().kv_bytes();
      std::vector<std::int32_t> prompt(8 * block + 1, 5);
      runner.start(0, prompt).rows(0, 8 * block - 8).step();
      runner.rows(0, 9).step();
      const KvTraffic before = runner.runner().kv_traffic();
      CHECK(before.by_host == 0);
      CHECK(before.to_device == 7 * bytes);
      runner.decode(3);
      const KvTraffic after = runner.runner().kv_traffic();
      const auto taken = static_cast<std::uint64_t>(each.taken_of_8);
      CHECK(after.by_host == 3 * taken * bytes);
      CHECK(after.to_device - before.to_device == 3 * (8 - taken) * bytes);
      runner.finish();
    }
  });
}

TEST_CASE(
    "host attention: a prefix that sequences share comes to the device once; their own stays") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kUnevenModel);
    const auto& prompt = golden.prompts[2];
    const auto length = static_cast<std::int64_t>(prompt.ids.size());
    const std::int64_t block = 16, shared = 4;
    RunnerUnderTest runner(rank, golden, with_share(0.5));
    const std::uint64_t bytes = runner.runner().block_shape().kv_bytes();
    runner.start(0, prompt.ids).rows(0, length).step();
    const auto& blocks = runner.blocks(0);
    runner.start(1, prompt.ids, {blocks.begin(), blocks.begin() + shared});
    runner.rows(1, length - shared * block).step();
    const KvTraffic before = runner.runner().kv_traffic();
    runner.decode(1);
    const KvTraffic after = runner.runner().kv_traffic();
    const auto own = static_cast<std::uint64_t>(2 * (length / block - shared));
    REQUIRE(own > shared);
    // Half of all distinct blocks, unless many are shared.
    const std::uint64_t taken = (own + shared) / 2;
    CHECK(after.by_host - before.by_host == taken * bytes);
    CHECK(after.to_device - before.to_device == (own + shared - taken) * bytes);
    runner.decode(30);
    runner.finish();
    CHECK(why_not_golden(prompt, runner.tokens(0), 0) == "");
    CHECK(runner.tokens(0).size() >= 30);
    runner.end(0).decode(10);  // the other sequence goes on reading its blocks
    runner.finish();
    CHECK(why_not_golden(prompt, runner.tokens(1), 0) == "");
    CHECK(runner.tokens(1).size() >= 40);
  });
}

TEST_CASE("host attention: sequences come and go, beside prompts and without") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kUnevenModel);
    RunnerTestOptions options = with_share(0.5);
    check_come_and_go(rank, golden, options);
  });
}

TEST_CASE("host attention: copies and calls that take any time change nothing") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kUnevenModel);
    for (const unsigned seed : {1u, 2u}) {
      RunnerTestOptions options = with_share(0.5, 3);
      options.graphs = seed == 1;
      options.hooks = slow_at_random(seed);
      options.steps_ahead = 2;
      CHECK(continue_all(rank, golden, options, 40) == "");
    }
  });
}

// A wait to leave out, and the delays of CPU calls and write-outs with which leaving it out shows.
struct HostLeftOut {
  OffloadWait wait;
  std::chrono::microseconds call, write;
};

std::vector<HostLeftOut> all_host_waits() {
  using std::chrono::microseconds;
  const microseconds none(0), some(500), long_time(5000);
  return {{OffloadWait::queries_of_host, none, none},
          {OffloadWait::host_of_write, none, long_time},
          {OffloadWait::combine_of_host, some, none}};
}

// Describes the wrong tokens without these waits. Runs without graphs, because a stream becomes
// part of a capture only through these waits.
std::string wrong_without_host_wait(DeviceRank& rank, const GoldenModel& golden, std::size_t which,
                                    std::uint32_t left_out, int run) {
  const HostLeftOut each = all_host_waits()[which];
  RunnerTestOptions options = with_share(1);
  options.slots = 1;
  options.graphs = false;
  options.steps_ahead = 2;
  options.hooks = slow([each, factor = slowness(run)](Transfer what) {
    if (what == Transfer::by_host) return factor * each.call;
    return what == Transfer::to_host ? factor * each.write : std::chrono::microseconds(0);
  });
  options.hooks.left_out = left_out;
  RunnerUnderTest runner(rank, golden, options);
  runner.start(0, golden.prompts[2].ids);
  runner.prefill(40);
  runner.decode(26);
  runner.finish();
  return why_not_golden(golden.prompts[2], runner.tokens(0), 0);
}

TEST_CASE("host attention: waits that are left out are missed") {
  CHECK(all_host_waits().size() == kvcache::kHostAttentionWaits);
  check_waits_are_missed(kUnevenModel, waits_of(all_host_waits()), wrong_without_host_wait, 20);
}

constexpr const char* kHostRacing =
    "host attention: ThreadSanitizer finds each wait that is left out";

TEST_CASE(kHostRacing) {
  find_races(kHostRacing, kUnevenModel, waits_of(all_host_waits()), wrong_without_host_wait);
}

}  // namespace
}  // namespace nvllm::runtime
