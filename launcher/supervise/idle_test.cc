// Real workers without any work.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "launcher/cli/program.h"
#include "launcher/supervise/worker_group.h"
#include "launcher/testing/process_use.h"
#include "runtime/worker/worker.h"
#include "testing/sanitizers.h"

namespace nvllm::launcher {
namespace {

using testing::cpu_seconds;

// Workers on the CPU that wait for their first call, and what was printed about them.
class IdleWorkers {
 public:
  explicit IdleWorkers(int ranks, const std::string& collectives = "auto")
      : output_(::memfd_create("output", MFD_CLOEXEC)),
        workers_({.group = {.size = ranks, .step_timeout = std::chrono::seconds(2)},
                  .output = output_.get()},
                 [&](const ipc::Group& group, int rank) {
                   return runtime::run_worker(group, rank,
                                              {.gpus = {}, .collectives = collectives});
                 }) {}

  WorkerGroup& workers() { return workers_; }
  const ipc::Group& group() { return workers_.member().group(); }
  pid_t pid(int rank) const { return workers_.pids()[static_cast<std::size_t>(rank)]; }
  void await_ready() {
    for (int rank = 0; rank < group().size(); ++rank) {
      while (group().snapshot(rank).phase != ipc::Phase::ready && !group().aborted()) ::usleep(500);
    }
  }
  double seconds_until_abort() {
    const std::int64_t start = now_ns();
    while (!group().aborted() && seconds_since(start) < 60) ::usleep(500);
    return seconds_since(start);
  }
  std::string output() const {
    std::array<char, 1 << 16> text;
    const ssize_t n = ::pread(output_.get(), text.data(), text.size(), 0);
    return {text.data(), static_cast<std::size_t>(n)};
  }

 private:
  UniqueFd output_;
  WorkerGroup workers_;
};

}  // namespace

TEST_CASE("idle workers end in order when they are asked to") {
  IdleWorkers idle(3);
  idle.await_ready();
  idle.workers().expect_end();
  idle.group().request_stop();
  CHECK(idle.workers().finish() == kExitFine);
  CHECK(idle.output() == "");
}

TEST_CASE("an idle worker that is killed is named at once") {
  for (const int rank : {0, 1}) {
    IdleWorkers idle(2);
    idle.await_ready();
    ::kill(idle.pid(rank), SIGKILL);
    CHECK(idle.seconds_until_abort() < 1 * testing::kLoad);
    CHECK(idle.workers().finish() == kExitDied);
    CHECK(idle.output().starts_with(
        str("nvllm-launch: rank ", rank, " (pid ", idle.pid(rank), ") died: killed by SIGKILL\n")));
    CHECK(idle.output().find(str("  rank ", 1 - rank, "  pid ", idle.pid(1 - rank),
                                 "  ended by the launcher; step 0; idle")) != std::string::npos);
  }
}

TEST_CASE("an idle worker that is stopped is named after the step timeout") {
  for (const int rank : {0, 1}) {
    IdleWorkers idle(2);
    idle.await_ready();
    ::kill(idle.pid(rank), SIGSTOP);
    CHECK(idle.seconds_until_abort() < 2 + 1 * testing::kLoad);
    CHECK(idle.workers().finish() == kExitStuck);
    CHECK(idle.output().starts_with(str("nvllm-launch: rank ", rank, " (pid ", idle.pid(rank),
                                        ") is alive but stuck (stopped by SIGSTOP)\n")));
  }
}

TEST_CASE("a worker that cannot start says why, once in the log and once in the post-mortem") {
  IdleWorkers idle(1, "nccl");
  idle.seconds_until_abort();
  CHECK(idle.workers().finish() == kExitDied);
  const std::string output = idle.output();
  INFO(output);
  CHECK(output.find(" rank 0 error ") != std::string::npos);
  CHECK(output.find("died: exit code 1: ") != std::string::npos);
  CHECK(output.find("nccl") != std::string::npos);
}

TEST_CASE("idle workers take less than 1% of a core") {
  IdleWorkers idle(2);
  idle.await_ready();
  ::usleep(100'000);
  const double before =
      cpu_seconds(::getpid()) + cpu_seconds(idle.pid(0)) + cpu_seconds(idle.pid(1));
  constexpr double kSeconds = 3;
  ::usleep(static_cast<useconds_t>(kSeconds * 1e6));
  const double used =
      cpu_seconds(::getpid()) + cpu_seconds(idle.pid(0)) + cpu_seconds(idle.pid(1)) - before;
  // Ticks are 10 ms long; sanitizers do work of their own.
  CHECK(used <= 0.01 * kSeconds * testing::kLoad);
  CHECK(idle.workers().finish("enough") == kExitFailed);
}

}  // namespace nvllm::launcher
