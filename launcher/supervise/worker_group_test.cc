#include "launcher/supervise/worker_group.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/unique_fd.h"
#include "ipc/group.h"
#include "launcher/cli/program.h"
#include "launcher/supervise/testing/worker_group_fixture.h"
#include "testing/sanitizers.h"

namespace nvllm::launcher {
namespace {

int end_at_once(const ipc::Group& group, int rank) {
  ipc::Member me = group.join(rank);
  me.set_phase(ipc::Phase::ready);
  return 0;
}

}  // namespace

TEST_CASE("workers that end as they are asked to are a success") {
  const Output output;
  Obedient obedient;
  WorkerGroup workers(options_for(output, 3), std::ref(obedient));
  CHECK(obedient.stop(workers) == kExitFine);
  CHECK(output.text() == "");
  for (const pid_t pid : workers.pids()) CHECK(gone(pid));
}

TEST_CASE("a group without an end ends its workers, and leaves the report to who unwinds") {
  const Output output;
  std::vector<pid_t> pids;
  {
    WorkerGroup workers(options_for(output, 2), wait_for_abort);
    await_ready(workers);
    pids = workers.pids();
  }
  CHECK(output.text() == "");
  for (const pid_t pid : pids) CHECK(gone(pid));
}

TEST_CASE("a worker that ends unasked, though without an error, is a failure") {
  const Output output;
  WorkerGroup workers(options_for(output, 1), end_at_once);
  seconds_until_abort(workers);
  CHECK(workers.finish() == kExitDied);
  CHECK(output.says("rank 0 (pid "));
  CHECK(output.says("exit code 0"));
}

TEST_CASE("a killed worker is named at once, with every rank's fate, and all are gone") {
  for (const int victim : {0, 1, 2}) {
    const Output output;
    WorkerGroup workers(options_for(output, 3), wait_for_abort);
    await_ready(workers);
    ::kill(workers.pids()[static_cast<std::size_t>(victim)], SIGKILL);
    CHECK(seconds_until_abort(workers) < 1 * testing::kLoad);
    CHECK(workers.finish() == kExitDied);
    CHECK(output.text().starts_with(str("nvllm-launch: rank ", victim, " (pid ")));
    for (int rank = 0; rank < 3; ++rank) {
      CHECK(output.says(
          str("  rank ", rank, "  pid ", workers.pids()[static_cast<std::size_t>(rank)],
              rank == victim ? "  killed by SIGKILL; step 0; idle" : "  ended by the launcher; ")));
    }
    for (const pid_t pid : workers.pids()) CHECK(gone(pid));
  }
}

TEST_CASE("a stopped worker is missed after the step timeout, and named as alive but stuck") {
  const Output output;
  WorkerGroup workers(options_for(output, 2, std::chrono::seconds(1)), wait_for_abort);
  await_ready(workers);
  ::kill(workers.pids()[1], SIGSTOP);
  const double seconds = seconds_until_abort(workers);
  CHECK(seconds > 0.5);
  CHECK(seconds < 3 * testing::kLoad);
  CHECK(workers.finish() == kExitStuck);
  CHECK(output.text().starts_with(str("nvllm-launch: rank 1 (pid ", workers.pids()[1],
                                      ") is alive but stuck (stopped by SIGSTOP)")));
  for (const pid_t pid : workers.pids()) CHECK(gone(pid));
}

TEST_CASE("a worker that is stopped before it joined is missed after the step timeout") {
  const Output output;
  WorkerGroup workers(options_for(output, 2, std::chrono::seconds(1)),
                      [](const ipc::Group& group, int rank) {
                        if (rank == 1) ::raise(SIGSTOP);
                        return wait_for_abort(group, rank);
                      });
  CHECK(seconds_until_abort(workers) < 2 * testing::kLoad);
  CHECK(workers.finish() == kExitStuck);
  CHECK(output.text().starts_with(str("nvllm-launch: rank 1 (pid ", workers.pids()[1],
                                      ") is alive but stuck (stopped by SIGSTOP)")));
  for (const pid_t pid : workers.pids()) CHECK(gone(pid));
}

TEST_CASE("a worker whose start does not get on is missed after the limit of a start") {
  const Output output;
  WorkerGroup::Options options = options_for(output, 1, std::chrono::seconds(1));
  options.start_limit = std::chrono::milliseconds(1500);
  WorkerGroup workers(options, [](const ipc::Group& group, int rank) {
    ipc::Member me = group.join(rank);
    const ipc::Heartbeat heartbeat(me);
    while (true) ::usleep(100'000);
    return 0;
  });
  const double seconds = seconds_until_abort(workers);
  CHECK(seconds > 1);
  CHECK(seconds < 2.5 * testing::kLoad);
  CHECK(workers.finish() == kExitStuck);
  CHECK(output.says("is alive but stuck (no progress)"));
}

TEST_CASE("a standard error that nobody reads does not hold up the end for long") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) == 0);
  const UniqueFd reading(ends[0]), writing(ends[1]);
  const std::string filling(4096, '.');
  while (::write(writing.get(), filling.data(), filling.size()) > 0) {
  }
  double seconds = 0;
  {
    WorkerGroup workers({.group = {.size = 1}, .output = writing.get()}, wait_for_abort);
    await_ready(workers);
    ::kill(workers.pids()[0], SIGKILL);
    seconds_until_abort(workers);
    seconds = static_cast<double>(now_ns()) * 1e-9;
    CHECK(workers.finish() == kExitDied);
  }
  seconds = static_cast<double>(now_ns()) * 1e-9 - seconds;
  CHECK(seconds < 0.8 + 0.2 * testing::kLoad);
}

TEST_CASE("a worker that is stopped at its end is missed after the step timeout") {
  const Output output;
  Obedient obedient;
  WorkerGroup workers(options_for(output, 2, std::chrono::seconds(1)),
                      [&](const ipc::Group& group, int rank) {
                        const int code = obedient(group, rank);
                        if (rank == 1) ::raise(SIGSTOP);
                        return code;
                      });
  await_ready(workers);
  const std::int64_t start = now_ns();
  CHECK(obedient.stop(workers) == kExitStuck);
  CHECK(seconds_since(start) < 2 * testing::kLoad);
  CHECK(output.says(str("rank 1 (pid ", workers.pids()[1], ") is alive but stuck")));
}

TEST_CASE("a worker stopped for less than the step timeout goes on") {
  const Output output;
  WorkerGroup workers(options_for(output, 1, std::chrono::seconds(30)), wait_for_abort);
  await_ready(workers);
  ::kill(workers.pids()[0], SIGSTOP);
  ::usleep(200'000);
  ::kill(workers.pids()[0], SIGCONT);
  ::usleep(200'000);
  CHECK_FALSE(workers.member().group().aborted());
  CHECK(workers.finish("enough") == kExitFailed);
  CHECK(output.text() == "nvllm-launch: enough\n");
}

TEST_CASE("a worker that hangs within a collective while its heart beats is stuck") {
  const Output output;
  WorkerGroup workers(options_for(output, 2, std::chrono::milliseconds(500)),
                      [](const ipc::Group& group, int rank) {
                        ipc::Member me = group.join(rank);
                        const ipc::Heartbeat heartbeat(me);
                        me.set_phase(ipc::Phase::ready);
                        if (rank == 0) {
                          const ipc::Member::ActivityScope doing(
                              me, ipc::Member::Activity::collective, "all_reduce 8 float32");
                          while (true) ::usleep(100'000);
                        }
                        while (!group.aborted()) ::usleep(1000);
                        return 0;
                      });
  seconds_until_abort(workers);
  CHECK(workers.finish() == kExitStuck);
  CHECK(output.says("rank 0 (pid "));
  CHECK(output.says("is alive but stuck (no progress), in all_reduce 8 float32 #1 for "));
}

TEST_CASE("a worker that is long in a call is not stuck as long as it gets on") {
  const Output output;
  WorkerGroup workers(options_for(output, 1, std::chrono::milliseconds(500)),
                      [](const ipc::Group& group, int rank) {
                        ipc::Member me = group.join(rank);
                        const ipc::Heartbeat heartbeat(me);
                        me.set_phase(ipc::Phase::ready);
                        const ipc::Member::ActivityScope doing(me, ipc::Member::Activity::call,
                                                               "step");
                        for (int i = 0; i < 40; ++i) {
                          ::usleep(100'000);
                          me.note_progress();
                        }
                        while (!group.aborted()) ::usleep(1000);
                        return 0;
                      });
  const double seconds = seconds_until_abort(workers);
  CHECK(seconds > 4);
  CHECK(workers.finish() == kExitStuck);
  CHECK(output.says("is alive but stuck (no progress), in step #1 for "));
}

TEST_CASE("a worker that does not take part is named though the others notice first, and end") {
  const Output output;
  WorkerGroup workers(options_for(output, 3, std::chrono::milliseconds(500)),
                      [](const ipc::Group& group, int rank) {
                        ipc::Member me = group.join(rank);
                        const ipc::Heartbeat heartbeat(me);
                        me.set_phase(ipc::Phase::ready);
                        if (rank == 1) {
                          for (;;) ::usleep(100'000);
                        }
                        try {
                          me.exchange({}, "a blob");
                        } catch (const ipc::PeerTimeout& late) {
                          group.abort(late.what());
                          return 1;
                        } catch (const ipc::GroupAborted&) {
                        }
                        return 1;
                      });
  seconds_until_abort(workers);
  CHECK(workers.finish("aborted") == kExitStuck);
  const std::string text = output.text();
  INFO(text);
  CHECK(text.starts_with(
      str("nvllm-launch: rank 1 (pid ", workers.pids()[1], ") is alive but stuck")));
}

TEST_CASE("a worker that gives up in a call is shown in it, though it lives on for a moment") {
  const Output output;
  WorkerGroup workers(options_for(output, 1), [](const ipc::Group& group, int rank) {
    ipc::Member me = group.join(rank);
    const ipc::Heartbeat heartbeat(me);
    me.set_phase(ipc::Phase::ready);
    {
      const ipc::Member::ActivityScope doing(me, ipc::Member::Activity::call, "call step");
      ::usleep(200'000);  // it is seen in it
      group.abort("rank 0 gives up");
    }
    ::usleep(200'000);
    return 1;
  });
  seconds_until_abort(workers);
  CHECK(workers.finish() == kExitDied);
  INFO(output.text());
  CHECK(output.says("call step"));
}

TEST_CASE("a worker that throws at its start ends the group with its words") {
  const Output output;
  WorkerGroup workers(options_for(output, 2), [](const ipc::Group& group, int rank) -> int {
    if (rank == 0) return wait_for_abort(group, rank);
    ipc::Member me = group.join(rank);
    me.set_error_text("device 7 is on fire");
    fail("device 7 is on fire");
  });
  seconds_until_abort(workers);
  CHECK(workers.finish() == kExitDied);
  CHECK(output.says("nvllm-launch: rank 1 (pid "));
  CHECK(output.says("died: exit code 1: device 7 is on fire\n"));
}

TEST_CASE("what a worker printed before it died is not lost, and stands before the post-mortem") {
  const Output output;
  WorkerGroup workers(options_for(output, 1), [](const ipc::Group&, int) -> int {
    const std::string text = "libfoo: assertion failed\nno newline at the end";
    [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
    return ::raise(SIGKILL);
  });
  seconds_until_abort(workers);
  CHECK(workers.finish() == kExitDied);
  CHECK(output.text().starts_with(
      "rank 0: libfoo: assertion failed\nrank 0: no newline at the end\nnvllm-launch: "));
  CHECK(output.says("died: killed by SIGKILL"));
}

}  // namespace nvllm::launcher
