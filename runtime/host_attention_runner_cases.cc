// Attention by the host's cores in the runner: transformers' continuations whatever their share; bytes moved, and
// read where they are, as predicted; what takes its time changes nothing, and each wait that is left out is missed.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kvcache/offload_waits.h"
#include "runtime/runner_fixture.h"
#include "testing/rerun.h"
#include "testing/sanitizers.h"

namespace nvllm::runtime {
namespace {

using kvcache::KvTraffic;
using kvcache::OffloadHooks;
using kvcache::OffloadWait;
using kvcache::Transfer;
using testing::DeviceRank;

constexpr const char* kModel = "qwen3-uneven";  // 9 heads, 3 KV heads
constexpr int kDecodeSteps = 47;

RunnerTestOptions with_share(std::optional<double> share, std::int64_t ring_slots = 2,
                             std::int64_t block_size = 16) {
  RunnerTestOptions options;
  options.kv_mode = KvMode::chunked;
  options.host_attention = share;
  options.ring_slots = ring_slots;
  options.block_size = block_size;
  options.blocks = 8 * RunnerUnderTest::kMaxLength / block_size;
  while (options.blocks % 23 == 0) ++options.blocks;
  return options;
}

// What is wrong with all prompts' continuations; they end three blocks later at least.
std::string continue_all(DeviceRank& rank, const GoldenModel& golden,
                         const RunnerTestOptions& options, KvTraffic* traffic = nullptr) {
  RunnerUnderTest runner(rank, golden, options);
  for (std::uint32_t i = 0; i < golden.prompts.size(); ++i) runner.start(i, golden.prompts[i].ids);
  runner.prefill(40);
  runner.decode(kDecodeSteps);
  runner.finish();
  if (traffic != nullptr) *traffic = runner.runner().kv_traffic();
  if (rank.member.rank() > 0) return {};
  for (std::uint32_t i = 0; i < golden.prompts.size(); ++i) {
    const std::string why = why_not_golden(golden.prompts[i], runner.tokens(i), 0);
    if (!why.empty()) return str("prompt ", i, ": ", why);
    if (runner.tokens(i).size() < golden.prompts[i].continuation.size()) return "too few tokens";
  }
  return {};
}

TEST_CASE("host attention: any share, ring and number of threads gives transformers' tokens") {
  RANKS_OR_SKIP(1);
  struct Case {
    double share;
    std::int64_t ring, block, threads;
    bool graphs;
  };
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kModel);
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
      CHECK(continue_all(rank, golden, options, &traffic) == "");
      CHECK((traffic.by_host > 0) == (each.share > 0));
    }
  });
}

TEST_CASE("host attention: ranks with other heads give transformers' tokens") {
  for (const int ranks : {2, 3}) {
    RANKS_OR_SKIP(ranks);
    CAPTURE(ranks);
    testing::run_on_devices(ranks, [](DeviceRank& rank) {
      CHECK(continue_all(rank, GoldenModel(kModel), with_share(0.5)) == "");
    });
  }
}

TEST_CASE("host attention: the measured share gives transformers' tokens") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    CHECK(continue_all(rank, GoldenModel(kModel), with_share(std::nullopt)) == "");
  });
}

TEST_CASE("host attention: the cores' blocks do not cross, and prompts' blocks do") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kModel);
    const std::int64_t block = 16;
    struct Case {
      double share;
      std::int64_t taken_of_8;
    };
    // Of 8 blocks, those that make max(taken / share, left / (1 - share)) least.
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
    const GoldenModel golden(kModel);
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
    // All of them are less than half of what there is only if few are shared.
    const std::uint64_t taken = (own + shared) / 2;
    CHECK(after.by_host - before.by_host == taken * bytes);
    CHECK(after.to_device - before.to_device == (own + shared - taken) * bytes);
    runner.decode(30);
    runner.finish();
    CHECK(why_not_golden(prompt, runner.tokens(0), 0) == "");
    CHECK(runner.tokens(0).size() >= 30);
    runner.end(0).decode(10);  // the other one goes on reading what it computed
    runner.finish();
    CHECK(why_not_golden(prompt, runner.tokens(1), 0) == "");
    CHECK(runner.tokens(1).size() >= 40);
  });
}

TEST_CASE("host attention: sequences come and go, beside prompts and without") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kModel);
    RunnerTestOptions options = with_share(0.5);
    options.slots = 3;
    options.blocks = 30;
    options.steps_ahead = 2;
    RunnerUnderTest runner(rank, golden, options);
    const auto& prompts = golden.prompts;
    runner.start(2, prompts[2].ids).rows(2, 150).step();
    runner.start(0, prompts[0].ids).rows(2, 1).rows(0, 7).step();
    runner.decode(5);
    runner.end(2);  // while steps with it are under way
    runner.start(1, prompts[1].ids).rows(0, 1).rows(1, 30).step();
    runner.start(2, prompts[1].ids).rows(1, 3).rows(2, 33).rows(0, 1).step();
    runner.decode(10);
    runner.end(0);
    runner.decode(3);
    runner.start(0, prompts[0].ids).rows(0, 7).rows(1, 1).rows(2, 1).step();
    runner.decode(20);
    runner.finish();
    CHECK(why_not_golden(prompts[0], runner.tokens(0), 0) == "");
    CHECK(why_not_golden(prompts[1], runner.tokens(1), 0) == "");
    CHECK(why_not_golden(prompts[1], runner.tokens(2), 0) == "");
  });
}

OffloadHooks slow(std::function<std::chrono::microseconds(Transfer)> time) {
  OffloadHooks hooks;
  hooks.before_copy = [time](Transfer what) {
    const auto wait = time(what);
    if (wait.count() > 0) std::this_thread::sleep_for(wait);
  };
  return hooks;
}

TEST_CASE("host attention: copies and calls that take any time change nothing") {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [](DeviceRank& rank) {
    const GoldenModel golden(kModel);
    for (const unsigned seed : {1u, 2u}) {
      RunnerTestOptions options = with_share(0.5, 3);
      options.graphs = seed == 1;
      options.hooks = slow([random = std::make_shared<std::atomic<unsigned>>(seed)](Transfer) {
        const unsigned next = random->fetch_add(1) * 2654435761u >> 16;
        return std::chrono::microseconds(next % 4 == 0 ? next % 300 : 0);
      });
      options.steps_ahead = 2;
      CHECK(continue_all(rank, golden, options) == "");
    }
  });
}

// A wait to leave out, with the time that calls of the cores and write-outs take, so that it is missed.
struct LeftOut {
  OffloadWait wait;
  std::chrono::microseconds call, write;
};

std::vector<LeftOut> all_waits() {
  using std::chrono::microseconds;
  const microseconds none(0), some(500), long_time(5000);
  return {{OffloadWait::queries_of_host, none, none},
          {OffloadWait::host_of_write, none, long_time},
          {OffloadWait::merge_of_host, some, none}};
}

std::uint32_t bit_of(OffloadWait wait) {
  return 1u << static_cast<unsigned>(wait);
}

// What is wrong with the tokens that come without these waits. Not in graphs, to which a stream belongs only by
// these waits.
std::string wrong_without(DeviceRank& rank, const GoldenModel& golden, std::uint32_t left_out,
                          const LeftOut& each) {
  RunnerTestOptions options = with_share(1);
  options.slots = 1;
  options.graphs = false;
  options.steps_ahead = 2;
  options.hooks = slow([each](Transfer what) {
    if (what == Transfer::by_host) return each.call;
    return what == Transfer::to_host ? each.write : std::chrono::microseconds(0);
  });
  options.hooks.left_out = left_out;
  RunnerUnderTest runner(rank, golden, options);
  runner.start(0, golden.prompts[2].ids);
  runner.prefill(40);
  runner.decode(26);
  runner.finish();
  return why_not_golden(golden.prompts[2], runner.tokens(0), 0);
}

// Whether any of a few runs gives other tokens without this wait. Where they are all the same by luck the
// machine was slow at the wrong time.
bool missed(DeviceRank& rank, const GoldenModel& golden, const LeftOut& each) {
  for (int run = 0; run < 20; ++run) {
    if (!wrong_without(rank, golden, bit_of(each.wait), each).empty()) return true;
  }
  return false;
}

TEST_CASE("host attention: waits that are left out are missed") {
  RANKS_OR_SKIP(1);
  if (testing::kSanitized) SKIP_TEST("races on purpose");
  if (testing::device_under_test() == DeviceKind::cuda) SKIP_TEST("the CPU's streams show it");
  CHECK(all_waits().size() == kvcache::kHostAttentionWaits);
  testing::run_on_devices(1, [&](DeviceRank& rank) {
    const GoldenModel golden(kModel);
    for (const LeftOut& each : all_waits()) {
      CAPTURE(static_cast<int>(each.wait));
      CHECK(missed(rank, golden, each));
    }
  });
}

constexpr const char* kVariable = "NVLLM_LEAVE_OUT";
constexpr const char* kRacing = "host attention: ThreadSanitizer finds each wait that is left out";

// What the case below starts: the steps without one wait, or with all of them.
void run_without(const std::string& number) {
  RANKS_OR_SKIP(1);
  testing::run_on_devices(1, [&](DeviceRank& rank) {
    const GoldenModel golden(kModel);
    for (const LeftOut& each : all_waits()) {
      CAPTURE(static_cast<int>(each.wait));
      if (number == "none") {
        CHECK(wrong_without(rank, golden, 0, each) == "");
      } else if (number == str(static_cast<int>(each.wait))) {
        // Also behind wrong tokens: which runs have a race in them that shows is a matter of who is late.
        for (int run = 0; run < 16; ++run) wrong_without(rank, golden, bit_of(each.wait), each);
      }
    }
  });
}

TEST_CASE(kRacing) {
  if (const char* const number = std::getenv(kVariable)) return run_without(number);
  if (!testing::kThreadSanitized) SKIP_TEST("not a build with ThreadSanitizer");
  const testing::Rerun all = testing::rerun_case(kRacing, kVariable, "none");
  CHECK_MESSAGE(all.passed(), all.output);
  CHECK_FALSE(all.raced());
  for (const LeftOut& each : all_waits()) {
    CAPTURE(static_cast<int>(each.wait));
    CHECK(testing::rerun_until_race(kRacing, kVariable, str(static_cast<int>(each.wait))).raced());
  }
}

}  // namespace
}  // namespace nvllm::runtime
