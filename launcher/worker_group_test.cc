#include "launcher/worker_group.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "ipc/heartbeat.h"
#include "launcher/exit_code.h"
#include "testing/ranks.h"
#include "testing/sanitizers.h"

namespace nvllm::launcher {
namespace {

// A file that takes what a console writes.
class Output {
 public:
  Output() : fd_(::memfd_create("output", MFD_CLOEXEC)) { REQUIRE(fd_.get() >= 0); }
  int fd() const { return fd_.get(); }
  std::string text() const {
    std::string all;
    std::array<char, 4096> chunk;
    for (ssize_t n; (n = ::pread(fd_.get(), chunk.data(), chunk.size(),
                                 static_cast<off_t>(all.size()))) > 0;) {
      all.append(chunk.data(), static_cast<std::size_t>(n));
    }
    return all;
  }
  bool says(const std::string& part) const { return text().find(part) != std::string::npos; }

 private:
  UniqueFd fd_;
};

WorkerGroup::Options options_for(const Output& output, int size,
                                 Nanoseconds step_timeout = std::chrono::seconds(60)) {
  return {.group = {.size = size, .step_timeout = step_timeout}, .output = output.fd()};
}

// A worker that is ready and does nothing until the group is aborted.
int wait_for_abort(const ipc::Group& group, int rank) {
  ipc::Member me = group.join(rank);
  const ipc::Heartbeat heartbeat(me);
  me.set_phase(ipc::Phase::ready);
  while (!group.aborted()) ::usleep(1000);
  return 1;
}

// Workers that end well when they are told to.
class Obedient {
 public:
  Obedient() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    wait_.reset(ends[0]);
    hold_.reset(ends[1]);
  }
  int operator()(const ipc::Group& group, int rank) {
    hold_.reset();
    ipc::Member me = group.join(rank);
    const ipc::Heartbeat heartbeat(me);
    me.set_phase(ipc::Phase::ready);
    char nothing;
    return static_cast<int>(::read(wait_.get(), &nothing, 1));  // 0 at the end of the pipe
  }
  int stop(WorkerGroup& workers) {
    workers.expect_end();
    hold_.reset();
    return workers.finish();
  }

 private:
  UniqueFd wait_, hold_;
};

int end_at_once(const ipc::Group& group, int rank) {
  ipc::Member me = group.join(rank);
  me.set_phase(ipc::Phase::ready);
  return 0;
}

void await_ready(WorkerGroup& workers) {
  const std::int64_t start = now_ns();
  for (std::size_t rank = 0; rank < workers.pids().size(); ++rank) {
    while (workers.member().group().snapshot(static_cast<int>(rank)).phase != ipc::Phase::ready) {
      REQUIRE(seconds_since(start) < 60);
      ::usleep(500);
    }
  }
}

// Waits until the supervisor has ended the group because of what the test did to it.
double seconds_until_abort(WorkerGroup& workers) {
  const std::int64_t start = now_ns();
  while (!workers.member().group().aborted()) {
    REQUIRE(seconds_since(start) < 60);
    ::usleep(500);
  }
  return seconds_since(start);
}

bool gone(pid_t pid) {
  return ::kill(pid, 0) == -1 && errno == ESRCH;
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
                          const ipc::Member::Doing doing(me, ipc::Member::Activity::collective,
                                                         "all_reduce 8 float32");
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
                        const ipc::Member::Doing doing(me, ipc::Member::Activity::call, "step");
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

TEST_CASE("a worker that throws at its start ends the group with its words") {
  const Output output;
  WorkerGroup workers(options_for(output, 2), [](const ipc::Group& group, int rank) -> int {
    if (rank == 0) return wait_for_abort(group, rank);
    ipc::Member me = group.join(rank);
    me.set_last_words("device 7 is on fire");
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

TEST_CASE("SIGTERM to the launcher and its workers at once is a stop, not a worker's death") {
  const Output output;
  WorkerGroup workers(options_for(output, 2), wait_for_abort);
  await_ready(workers);
  for (const pid_t pid : workers.pids()) ::kill(pid, SIGTERM);
  ::kill(::getpid(), SIGTERM);
  CHECK(workers.finish("aborted") == kExitSignal + SIGTERM);
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

namespace {

std::size_t open_files() {
  return static_cast<std::size_t>(std::distance(
      std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()));
}

std::size_t resident_bytes() {
  std::size_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

TEST_CASE("a thousand starts and stops leave no file, process, memory or name behind") {
  const int cycles = testing::kSanitized ? 60 : 1000;
  const Output output;
  std::size_t files = 0, bytes = 0;
  for (int cycle = 0; cycle < cycles; ++cycle) {
    Obedient obedient;
    WorkerGroup workers(options_for(output, 2), std::ref(obedient));
    REQUIRE(obedient.stop(workers) == kExitFine);
    if (cycle == cycles / 10) files = open_files(), bytes = resident_bytes();
  }
  CHECK(open_files() <= files);
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
  CHECK(errno == ECHILD);
  if (!testing::kSanitized) CHECK(resident_bytes() < bytes + (std::size_t{1} << 20));
  CHECK(testing::lingering_shm_names().empty());
}

}  // namespace nvllm::launcher
