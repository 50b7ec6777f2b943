#include "runtime/runner/testing/runner_scripts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>

#include "base/text.h"
#include "testing/rerun.h"
#include "testing/sanitizers.h"
#include "testing/skip.h"

namespace nvllm::runtime {
namespace {

using kvcache::OffloadHooks;
using kvcache::OffloadWait;
using kvcache::Transfer;
using testing::DeviceRank;

// The tolerance of model/golden_cases.cc for transformers' own bfloat16.
float margin_of(DType dtype) {
  return dtype == DType::f32 ? 0.0f : 0.4f;
}

std::uint32_t bit_of(OffloadWait wait) {
  return 1u << static_cast<unsigned>(wait);
}

std::string number_of(OffloadWait wait) {
  return str(static_cast<int>(wait));
}

// Environment variable: index of the wait to leave out.
constexpr const char* kVariable = "NVLLM_LEAVE_OUT";

// The subprocess of find_races(): runs the steps of one wait without it, or the steps of all waits
// with all waits.
void run_without(const std::string& number, const char* model,
                 const std::vector<OffloadWait>& waits, const WrongWithout& wrong) {
  constexpr int kRuns = 16;
  testing::run_on_devices(1, [&](DeviceRank& rank) {
    const GoldenModel golden(model);
    for (std::size_t i = 0; i < waits.size(); ++i) {
      CAPTURE(static_cast<int>(waits[i]));
      if (number == "none") {
        CHECK(wrong(rank, golden, i, 0, 0) == "");
      } else if (number == number_of(waits[i])) {
        // Continues after wrong tokens: a race shows only in some runs, depending on timing.
        for (int run = 0; run < kRuns; ++run) wrong(rank, golden, i, bit_of(waits[i]), run);
      }
    }
  });
}

}  // namespace

RunnerTestOptions chunked(std::int64_t ring_slots, std::int64_t block_size) {
  RunnerTestOptions options;
  options.kv_mode = KvMode::chunked;
  options.ring_slots = ring_slots;
  options.block_size = block_size;
  options.blocks = 8 * RunnerUnderTest::kMaxLength / block_size;
  while (options.blocks % 23 == 0) ++options.blocks;
  return options;
}

void check_traffic(DeviceRank& rank, const GoldenModel& golden, std::int64_t resident) {
  constexpr std::int64_t kBlock = 16;
  RunnerTestOptions options = chunked(2, kBlock);
  options.resident = resident;
  RunnerUnderTest runner(rank, golden, options);
  kvcache::KvTraffic expected;
  // A step of rows [first, first + rows) reads the full blocks before them, and writes those that
  // they complete.
  const auto expect = [&](std::int64_t first, std::int64_t rows) {
    const std::int64_t full = first / kBlock, filled = (first + rows) / kBlock - full;
    const std::uint64_t bytes = runner.runner().block_shape().kv_bytes();
    expected.to_device +=
        static_cast<std::uint64_t>(std::max<std::int64_t>(full - resident, 0)) * bytes;
    expected.to_host += static_cast<std::uint64_t>(filled) * bytes;
  };
  const auto& prompt = golden.prompts.back();
  const auto length = static_cast<std::int64_t>(prompt.ids.size());
  REQUIRE(length > 100);
  runner.start(0, prompt.ids).rows(0, 33).step();
  expect(0, 33);
  CHECK(runner.runner().kv_traffic() == expected);
  runner.rows(0, length - 33).step();
  expect(33, length - 33);
  CHECK(runner.runner().kv_traffic() == expected);
  runner.decode(kDecodeSteps);
  for (int step = 0; step < kDecodeSteps; ++step) expect(length + step, 1);
  CHECK(runner.runner().kv_traffic() == expected);
  runner.finish();
  CHECK(why_not_golden(prompt, runner.tokens(0), 0) == "");
}

std::string continue_all(DeviceRank& rank, const GoldenModel& golden,
                         const RunnerTestOptions& options, std::int64_t chunk,
                         kvcache::KvTraffic* traffic) {
  RunnerUnderTest runner(rank, golden, options);
  for (std::uint32_t i = 0; i < golden.prompts.size(); ++i) runner.start(i, golden.prompts[i].ids);
  runner.prefill(chunk);
  // Sequences that finish early wait for the others.
  runner.decode(kDecodeSteps);
  runner.finish();
  if (traffic != nullptr) *traffic = runner.runner().kv_traffic();
  if (rank.member.rank() > 0) return {};
  for (std::uint32_t i = 0; i < golden.prompts.size(); ++i) {
    const std::string why =
        why_not_golden(golden.prompts[i], runner.tokens(i), margin_of(options.dtype));
    if (!why.empty()) return str(golden.name, ", prompt ", i, ": ", why);
    if (runner.tokens(i).size() < golden.prompts[i].continuation.size()) return "too few tokens";
  }
  return {};
}

void come_and_go(RunnerUnderTest& runner, const std::vector<GoldenModel::Prompt>& prompts) {
  runner.start(2, prompts[2].ids).rows(2, 150).step();
  runner.start(0, prompts[0].ids).rows(2, 1).rows(0, 7).step();
  runner.decode(5);
  runner.end(2);  // while steps with it are in flight
  runner.start(1, prompts[1].ids).rows(0, 1).rows(1, 30).step();
  runner.start(2, prompts[1].ids).rows(1, 3).rows(2, 33).rows(0, 1).step();
  runner.decode(10);
  runner.end(0);
  runner.decode(3);
}

void check_come_and_go(DeviceRank& rank, const GoldenModel& golden, RunnerTestOptions options,
                       std::int64_t keep) {
  options.slots = 3;
  options.blocks = 30;
  options.steps_ahead = 2;
  RunnerUnderTest runner(rank, golden, options);
  const auto& prompts = golden.prompts;
  come_and_go(runner, prompts);
  runner.start(0, prompts[0].ids).keep(keep).rows(0, 7).rows(1, 1).rows(2, 1).step();
  runner.decode(20);
  runner.finish();
  CHECK(why_not_golden(prompts[0], runner.tokens(0), 0) == "");
  CHECK(why_not_golden(prompts[1], runner.tokens(1), 0) == "");
  CHECK(why_not_golden(prompts[1], runner.tokens(2), 0) == "");
}

OffloadHooks slow(std::function<std::chrono::microseconds(Transfer)> time) {
  OffloadHooks hooks;
  hooks.before_copy = [time = std::move(time)](Transfer what) {
    const auto wait = time(what);
    if (wait.count() > 0) std::this_thread::sleep_for(wait);
  };
  return hooks;
}

OffloadHooks slow_at_random(unsigned seed) {
  return slow([random = std::make_shared<std::atomic<unsigned>>(seed)](Transfer) {
    const unsigned next = random->fetch_add(1) * 2654435761u >> 16;
    return std::chrono::microseconds(next % 4 == 0 ? next % 300 : 0);
  });
}

int slowness(int run) {
  return 1 << std::min(run / 2, 4);
}

void check_waits_are_missed(const char* model, const std::vector<OffloadWait>& waits,
                            const WrongWithout& wrong, int runs) {
  RANKS_OR_SKIP(1);
  if (testing::kSanitized) SKIP_TEST("races on purpose");
  if (testing::device_under_test() == DeviceKind::cuda) SKIP_TEST("the CPU's streams show it");
  testing::run_on_devices(1, [&](DeviceRank& rank) {
    const GoldenModel golden(model);
    for (std::size_t i = 0; i < waits.size(); ++i) {
      CAPTURE(static_cast<int>(waits[i]));
      // If the tokens of all runs are right by chance, the machine was slow at the wrong moment.
      bool missed = false;
      for (int run = 0; run < runs && !missed; ++run) {
        missed = !wrong(rank, golden, i, bit_of(waits[i]), run).empty();
      }
      CHECK(missed);
    }
  });
}

void find_races(const std::string& case_name, const char* model,
                const std::vector<OffloadWait>& waits, const WrongWithout& wrong) {
  RANKS_OR_SKIP(1);
  if (const char* const number = std::getenv(kVariable)) {
    return run_without(number, model, waits, wrong);
  }
  if (!testing::kThreadSanitized) SKIP_TEST("not a build with ThreadSanitizer");
  const testing::Rerun all = testing::rerun_case(case_name, kVariable, "none");
  CHECK_MESSAGE(all.passed(), all.output);
  CHECK_FALSE(all.raced());
  for (const OffloadWait wait : waits) {
    CAPTURE(static_cast<int>(wait));
    const testing::Rerun without = testing::rerun_until_race(case_name, kVariable, number_of(wait));
    CHECK_MESSAGE(without.raced(), without.output);
  }
}

}  // namespace nvllm::runtime
