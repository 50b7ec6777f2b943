// What signals do to a group of workers, its launcher's end included, and what is left of it.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "ipc/group.h"
#include "launcher/cli/program.h"
#include "launcher/supervise/testing/worker_group_fixture.h"
#include "launcher/supervise/worker_group.h"
#include "launcher/testing/process_use.h"
#include "testing/ranks.h"
#include "testing/sanitizers.h"

namespace nvllm::launcher {

TEST_CASE("SIGTERM to one worker is that worker's death") {
  const Output output;
  WorkerGroup workers(options_for(output, 2), wait_for_abort);
  await_ready(workers);
  ::kill(workers.pids()[1], SIGTERM);
  CHECK(workers.finish("the call failed") == kExitDied);
  CHECK(output.text().starts_with(
      str("nvllm-launch: rank 1 (pid ", workers.pids()[1], ") died: killed by SIGTERM")));
}

TEST_CASE("Ctrl-C's SIGINT does not end a worker by itself") {
  const Output output;
  WorkerGroup workers(options_for(output, 1), wait_for_abort);
  await_ready(workers);
  for (const int signal : {SIGINT, SIGQUIT, SIGHUP}) ::kill(workers.pids()[0], signal);
  ::usleep(50'000);
  CHECK_FALSE(workers.member().group().aborted());
  CHECK(workers.finish("enough") == kExitFailed);
}

TEST_CASE("a signal to the launcher stops the workers, and its number is in the exit code") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const Output output;
    WorkerGroup workers(options_for(output, 2), wait_for_abort);
    await_ready(workers);
    ::kill(::getpid(), signal);
    const std::int64_t start = now_ns();
    seconds_until_abort(workers);
    CHECK(workers.finish("aborted") == kExitSignal + signal);
    CHECK(seconds_since(start) < 2 * testing::kLoad);
    CHECK_FALSE(output.says("died"));
    for (const pid_t pid : workers.pids()) CHECK(gone(pid));
  }
}

TEST_CASE("who is too busy to call finish() is told of by another thread, with the exit code") {
  const auto late_after = [](const std::function<void(WorkerGroup&)>& end, Nanoseconds limit) {
    const Output output;
    std::atomic<int> exit_code = -1;
    std::atomic<std::int64_t> late_ns = 0;
    WorkerGroup::Options options = options_for(output, 1);
    options.finish_limit = limit;
    options.on_finish_timeout = [&](int code) {
      exit_code = code;
      late_ns = now_ns();
    };
    WorkerGroup workers(options, wait_for_abort);
    await_ready(workers);
    end(workers);
    const std::int64_t ended_ns = now_ns();
    while (late_ns == 0 && seconds_since(ended_ns) < 30) ::usleep(1000);  // busy
    const int finished = workers.finish("too late");
    CHECK(finished == exit_code);
    return std::pair(exit_code.load(), static_cast<double>(late_ns - ended_ns) * 1e-9);
  };
  const auto killed = [](WorkerGroup& workers) { ::kill(workers.pids()[0], SIGKILL); };
  const auto signalled = [](WorkerGroup&) { ::kill(::getpid(), SIGTERM); };
  const auto twice = [](WorkerGroup& workers) {
    ::kill(workers.pids()[0], SIGKILL);
    while (!gone(workers.pids()[0])) ::usleep(1000);
    ::usleep(200'000);
    ::kill(::getpid(), SIGTERM);
  };
  const std::pair death = late_after(killed, Supervisor::kFinishLimit);
  CHECK(death.first == kExitDied);
  CHECK(death.second < 1 * testing::kLoad);
  const std::pair stop = late_after(signalled, std::chrono::seconds(60));
  CHECK(stop.first == kExitSignal + SIGTERM);
  CHECK(stop.second < 2 * testing::kLoad);
  const std::pair hurry = late_after(twice, std::chrono::seconds(60));
  CHECK(hurry.first == kExitDied);
  CHECK(hurry.second < 0.5 * testing::kLoad);
}

TEST_CASE("SIGTERM to the launcher and its workers at once is a stop, not a worker's death") {
  const Output output;
  WorkerGroup workers(options_for(output, 2), wait_for_abort);
  await_ready(workers);
  for (const pid_t pid : workers.pids()) ::kill(pid, SIGTERM);
  ::kill(::getpid(), SIGTERM);
  CHECK(workers.finish("aborted") == kExitSignal + SIGTERM);
}

TEST_CASE("so it is where the launcher sees to the signal, and would have let the workers go on") {
  const Output output;
  std::atomic<bool> seen = false;
  WorkerGroup::Options options = options_for(output, 2);
  options.on_signal = [&seen](int) { return seen = true; };
  WorkerGroup workers(options, wait_for_abort);
  await_ready(workers);
  ::kill(::getpid(), SIGTERM);
  while (!seen) ::usleep(1000);
  ::usleep(100'000);
  ::kill(workers.pids().front(), SIGTERM);
  CHECK(workers.finish("aborted") == kExitSignal + SIGTERM);
}

TEST_CASE("so it is with the link to other boxes") {
  for (const bool sees_to_it : {false, true}) {
    const Output output;
    std::atomic<bool> seen = false;
    WorkerGroup::Options options = options_for(output, 2);
    options.group.box_ranks = {1, 1};
    options.on_signal = [&](int) { return (seen = true) && sees_to_it; };
    options.link = [](const ipc::Group& group) -> int {
      ipc::Member me = group.join(ipc::kLink);
      const ipc::Heartbeat heartbeat(me);
      me.set_phase(ipc::Phase::ready);
      while (true) ::usleep(100'000);
    };
    WorkerGroup workers(options, wait_for_abort);
    const ipc::Group& group = workers.member().group();
    while (group.snapshot(ipc::kLink).phase != ipc::Phase::ready) ::usleep(1000);
    if (sees_to_it) {
      ::kill(::getpid(), SIGTERM);
      while (!seen) ::usleep(1000);
    }
    ::kill(group.snapshot(ipc::kLink).pid, SIGTERM);
    if (!sees_to_it) ::kill(::getpid(), SIGTERM);
    CHECK(workers.finish("aborted") == kExitSignal + SIGTERM);
    CHECK(output.text().find("died") == std::string::npos);
  }
}

TEST_CASE("on a box that follows the first, workers go on behind a signal that is seen to") {
  const Output output;
  std::atomic<bool> seen = false;
  WorkerGroup::Options options = options_for(output, 2);
  options.group.box_ranks = {1, 1};
  options.group.box = 1;
  options.on_signal = [&seen](int) { return seen = true; };
  options.link = [](const ipc::Group& group) {
    ipc::Member me = group.join(ipc::kLink);
    const ipc::Heartbeat heartbeat(me);
    me.set_phase(ipc::Phase::ready);
    while (group.snapshot(1).phase != ipc::Phase::ended) ::usleep(1000);
    return 0;
  };
  WorkerGroup workers(options, [](const ipc::Group& group, int rank) {
    ipc::Member me = group.join(rank);
    const ipc::Heartbeat heartbeat(me);
    me.set_phase(ipc::Phase::ready);
    while (!group.stop_requested()) ::usleep(1000);
    return 0;
  });
  ::usleep(100'000);
  ::kill(::getpid(), SIGTERM);
  const std::int64_t start = now_ns();
  while (!seen && seconds_since(start) < 10) ::usleep(1000);
  CHECK(seen);
  workers.member().group().request_stop();
  CHECK(workers.follow() == kExitFine);
  CHECK(output.text() == "");
}

TEST_CASE(
    "a worker that does not stop when asked is killed within 2 s, and at once at the second "
    "signal") {
  const auto stubborn = [](const ipc::Group& group, int rank) -> int {
    ipc::Member me = group.join(rank);
    const ipc::Heartbeat heartbeat(me);
    me.set_phase(ipc::Phase::ready);
    while (true) ::usleep(100'000);
  };
  double seconds[2];
  for (const int signals : {1, 2}) {
    const Output output;
    WorkerGroup workers(options_for(output, 2), stubborn);
    await_ready(workers);
    const std::int64_t start = now_ns();
    ::kill(::getpid(), SIGINT);
    seconds_until_abort(workers);
    if (signals == 2) ::kill(::getpid(), SIGINT);
    CHECK(workers.finish() == kExitSignal + SIGINT);
    seconds[signals - 1] = seconds_since(start);
  }
  CHECK(seconds[0] < 2 * testing::kLoad);
  CHECK(seconds[1] < seconds[0]);
}

TEST_CASE("a process that ignores SIGCHLD knows that a worker has ended, and blames no other") {
  ::signal(SIGCHLD, SIG_IGN);
  {
    const Output output;
    WorkerGroup workers(options_for(output, 2), [](const ipc::Group& group, int rank) {
      ipc::Member me = group.join(rank);
      const ipc::Heartbeat heartbeat(me);
      me.set_phase(ipc::Phase::ready);
      // Rank 1 waits for rank 0, which does nothing.
      if (rank == 1) me.exchange({}, "a blob");
      while (!group.aborted()) ::usleep(1000);
      return 1;
    });
    await_ready(workers);
    ::kill(workers.pids()[1], SIGKILL);
    CHECK(seconds_until_abort(workers) < 1 * testing::kLoad);
    CHECK(workers.finish() == kExitDied);
    CHECK(output.text().starts_with(
        str("nvllm-launch: rank 1 (pid ", workers.pids()[1], ") died: ended, status unknown")));
    for (const pid_t pid : workers.pids()) CHECK(gone(pid));
  }
  {
    const Output output;
    Obedient obedient;
    WorkerGroup workers(options_for(output, 2), std::ref(obedient));
    await_ready(workers);
    CHECK(obedient.stop(workers) == kExitFine);
    CHECK(output.text() == "");
  }
  ::signal(SIGCHLD, SIG_DFL);
}

TEST_CASE("workers are gone within 2 s after the launcher was killed with SIGKILL") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const pid_t launcher = ::fork();
  REQUIRE(launcher >= 0);
  if (launcher == 0) {
    const Output output;
    WorkerGroup workers(options_for(output, 2), wait_for_abort);
    for (const pid_t pid : workers.pids()) {
      [[maybe_unused]] const ssize_t n = ::write(ends[1], &pid, sizeof pid);
    }
    while (true) ::pause();
  }
  std::array<pid_t, 2> pids{};
  for (pid_t& pid : pids) REQUIRE(::read(ends[0], &pid, sizeof pid) == sizeof pid);
  ::kill(launcher, SIGKILL);
  ::waitpid(launcher, nullptr, 0);
  const std::int64_t start = now_ns();
  // An orphan's zombie may wait for its new parent; it is gone for all that counts.
  const auto dead = [](pid_t pid) {
    std::ifstream file(str("/proc/", pid, "/stat"));
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return text.empty() || text.find(") Z ") != std::string::npos;
  };
  for (const pid_t pid : pids) {
    while (!dead(pid) && seconds_since(start) < 30) ::usleep(1000);
  }
  CHECK(seconds_since(start) < 2 * testing::kLoad);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("a thousand starts and stops leave no file, process, memory or name behind") {
  const int cycles = testing::kSanitized ? 60 : 1000;
  const Output output;
  std::size_t files = 0, bytes = 0;
  for (int cycle = 0; cycle < cycles; ++cycle) {
    Obedient obedient;
    WorkerGroup workers(options_for(output, 2), std::ref(obedient));
    REQUIRE(obedient.stop(workers) == kExitFine);
    if (cycle == cycles / 10) files = testing::open_files(), bytes = testing::resident_bytes();
  }
  CHECK(testing::open_files() <= files);
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
  CHECK(errno == ECHILD);
  if (!testing::kSanitized) CHECK(testing::resident_bytes() < bytes + (std::size_t{1} << 20));
  CHECK(testing::lingering_shm_names().empty());
}

}  // namespace nvllm::launcher
