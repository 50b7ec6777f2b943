// Real workers with an engine, which are disturbed while they work, or idle for a while.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <string>

#include "launcher/supervise/testing/engine_group_fixture.h"
#include "launcher/testing/process_use.h"
#include "testing/sanitizers.h"
#include "testing/skip.h"

namespace nvllm::launcher {

using testing::cpu_seconds;

// A sanitized rank's step takes longer than a second on a busy machine.
constexpr std::chrono::seconds kStepTimeout(testing::kSanitized ? 5 : 1);

TEST_CASE(
    "a worker killed in the middle of answers is named, the front end is told, nothing is left") {
  for (const int victim : {0, 1}) {
    EngineGroup group(2);
    check_killed(group, victim);
  }
}

TEST_CASE("a worker stopped in the middle of answers is named after the step timeout") {
  EngineGroup group(2, 2 * kStepTimeout);
  check_stopped(group, 1);
}

TEST_CASE("a worker of any pipeline stage that is killed in the middle of answers is named") {
  for (const int victim : {0, 1, 2, 3}) {
    EngineGroup group(4, std::chrono::seconds(60), {}, 2);
    check_killed(group, victim);
  }
}

TEST_CASE("a worker of any pipeline stage that is stopped is named after the step timeout") {
  for (const int victim : {0, 1, 2}) {
    CAPTURE(victim);
    EngineGroup group(3, 2 * kStepTimeout, {}, 3);
    CHECK(check_stopped(group, victim) < 2 * kStepTimeout.count() + 2 * testing::kLoad);
  }
}

TEST_CASE("a pipeline that was idle for longer than the step timeout goes on") {
  EngineGroup group(3, kStepTimeout, {}, 3);
  check_goes_on_after(group, 2.5 * kStepTimeout);
}

TEST_CASE("an engine that has worked and has nothing to do takes less than 1% of a core") {
  EngineGroup group(2);
  group.open();
  CHECK(group.answer_to(1).size() > 0);
  const auto used_so_far = [&] {
    return cpu_seconds(::getpid()) + cpu_seconds(group.pid(0)) + cpu_seconds(group.pid(1));
  };
  ::usleep(100'000);
  const double before = used_so_far();
  constexpr double kSeconds = 3;
  ::usleep(static_cast<useconds_t>(kSeconds * 1e6));
  // Ticks are 10 ms long; sanitizers do work of their own.
  CHECK(used_so_far() - before <= 0.01 * kSeconds * testing::kLoad);
  CHECK(group.workers().finish("enough") == kExitFailed);
}

TEST_CASE("an engine that was idle for longer than the step timeout goes on") {
  EngineGroup group(2, kStepTimeout);
  check_goes_on_after(group, 2.5 * kStepTimeout);
}

TEST_CASE("SIGINT in the middle of answers stops the workers in time") {
  EngineGroup group(2);
  group.begin_long_answers();
  const std::int64_t start = now_ns();
  ::kill(::getpid(), SIGINT);
  const std::string reason = group.read_until_abort();
  CHECK(group.workers().finish(reason) == kExitSignal + SIGINT);
  CHECK(seconds_since(start) < 2 * testing::kLoad);
  CHECK(group.all_gone());
}

TEST_CASE("memory that one rank is refused is an error of the call, and nobody died") {
  if (testing::kSanitized) SKIP_TEST("sanitizers need more address space than any limit leaves");
  EngineGroup group(3, std::chrono::seconds(60), [](int rank) {
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t space = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (rlim_t{1} << 30);
    const rlimit limit{space, space};
    if (rank == 1) ::setrlimit(RLIMIT_AS, &limit);
  });
  std::string reason;
  const std::int64_t start = now_ns();
  try {
    group.open(std::int64_t{3} << 29);
  } catch (const ipc::GroupAborted&) {
    FAIL("the group has ended");
  } catch (const Error& error) {
    reason = error.what();
  }
  CHECK(reason.starts_with("rank 1: asked 1.50 GiB of host memory for 'kv cache', which the"));
  CHECK(seconds_since(start) < 5 * testing::kLoad);
  CHECK(group.workers().finish(reason) == kExitFailed);
  CHECK(group.output().find("died") == std::string::npos);
  CHECK(group.all_gone());
}

}  // namespace nvllm::launcher
