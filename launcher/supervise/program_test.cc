// The whole program, on the CPU.
#include "launcher/testing/program.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "base/unique_fd.h"
#include "device/topology.h"
#include "launcher/testing/faults.h"
#include "testing/ranks.h"
#include "testing/sanitizers.h"
#include "testing/skip.h"

namespace nvllm::launcher {
namespace {

using testing::kNotAllowed;
using testing::mount_own_shm;
using testing::Program;

std::vector<std::string> selftest(int ranks, std::vector<std::string> more = {}) {
  std::vector<std::string> words = {"selftest", "--device", "cpu", "--tp", std::to_string(ranks)};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::ptrdiff_t lines_of(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

// A pipe that takes nothing, since nobody reads it.
class FullPipe {
 public:
  FullPipe() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) == 0);
    reading_.reset(ends[0]);
    writing_.reset(ends[1]);
    const std::string filling(4096, '.');
    while (::write(ends[1], filling.data(), filling.size()) > 0) {
    }
    REQUIRE(::fcntl(ends[1], F_SETFL, 0) == 0);
  }
  void be_standard_error() const { ::dup2(writing_.get(), STDERR_FILENO); }

 private:
  UniqueFd reading_, writing_;
};

// The program with such a /dev/shm; it ends with kNotAllowed where there can be none.
Program with_own_shm(const char* options, unsigned long flags = 0) {
  return Program(selftest(2), [=] {
    if (!mount_own_shm(options, flags)) ::_exit(kNotAllowed);
  });
}

}  // namespace

TEST_CASE("a selftest prints its table on standard output, and nothing else anywhere") {
  for (const int ranks : {1, 2, 3}) {
    Program program(selftest(ranks));
    CHECK(program.wait() == 0);
    const std::string output = program.output();
    INFO(output);
    CHECK(output.starts_with(
        str("nvllm 0.2.0 selftest: ", ranks, ranks == 1 ? " rank on " : " ranks on ")));
    CHECK(output.find("start: all ranks ready after") != std::string::npos);
    CHECK(output.ends_with("all checks passed\n"));
    CHECK(program.errors() == "");
  }
  CHECK(testing::lingering_shm_names().empty());
}

TEST_CASE("--json prints one object with the same rows, start times, cores and memory") {
  Program program(selftest(2, {"--json", "--memory-report"}));
  CHECK(program.wait() == 0);
  const nlohmann::json json = parse_json(program.output());
  CHECK(json.at("version") == "0.2.0");
  CHECK(json.at("device") == "cpu");
  CHECK(json.at("passed") == true);
  CHECK(json.at("failures").empty());
  CHECK(json.at("rows").size() > 10);
  REQUIRE(json.at("ranks").size() == 2);
  for (const auto& rank : json.at("ranks")) {
    CHECK(rank.at("start_ms").at("joined") <= rank.at("start_ms").at("ready"));
    CHECK(rank.at("memory").size() > 0);
  }
}

TEST_CASE("CPU ranks split the cores between them") {
  if (allowed_cores().size() < 2) SKIP_TEST("needs 2 cores, found 1");
  Program program(selftest(2, {"--json"}));
  CHECK(program.wait() == 0);
  const nlohmann::json json = parse_json(program.output());
  std::set<int> all;
  std::size_t sum = 0;
  for (const auto& rank : json.at("ranks")) {
    const auto cores = rank.at("cores").get<std::vector<int>>();
    all.insert(cores.begin(), cores.end());
    sum += cores.size();
  }
  CHECK(all.size() == sum);
  CHECK(sum == allowed_cores().size());
}

TEST_CASE("a wrong command line starts nothing: one line, exit code 2") {
  for (const auto& arguments :
       std::vector<std::vector<std::string>>{{"selftset"},
                                             {"selftest", "--tp", "0"},
                                             {"selftest", "--tp", "-3"},
                                             {"selftest", "--tp", "9"},
                                             {"selftest", "--tp", "abc"},
                                             {"selftest", "--tpp=2"},
                                             {"selftest", "--step-timeout=0"},
                                             {"selftest", "--device=cpu", "--collectives=nccl"},
                                             {"--frobnicate"}}) {
    Program program(arguments);
    CHECK(program.wait() == 2);
    CHECK(program.output() == "");
    CHECK(program.errors().starts_with("nvllm-launch: "));
    CHECK(lines_of(program.errors()) == 1);
  }
}

TEST_CASE("--device cuda without a GPU is refused in one line") {
  if (!visible_gpus().empty()) SKIP_TEST("needs a machine without a GPU");
  Program program({"selftest", "--device", "cuda"});
  CHECK(program.wait() == 2);
  CHECK(program.errors().starts_with("nvllm-launch: --device cuda: "));
  CHECK(lines_of(program.errors()) == 1);
}

TEST_CASE("help and version go to standard output") {
  for (const auto& arguments :
       std::vector<std::vector<std::string>>{{"--help"}, {"--version"}, {"selftest", "--help"}}) {
    Program program(arguments);
    CHECK(program.wait() == 0);
    CHECK(program.output() != "");
    CHECK(program.errors() == "");
  }
}

TEST_CASE("--seconds keeps going for as long, with a line per second on standard error") {
  Program program(selftest(2, {"--seconds", "2.5"}));
  const std::int64_t start = now_ns();
  CHECK(program.wait() == 0);
  CHECK(seconds_since(start) > 2.5);
  CHECK(program.errors().find(" rank 0 info selftest: 2 of 2.5 s, ") != std::string::npos);
  CHECK(program.output().find("selftest: 2 of") == std::string::npos);
}

TEST_CASE("a worker that is killed in the middle of the work is named within a second") {
  for (const int rank : {0, 1, 2}) testing::check_killed_worker({"cpu", 3}, rank, SIGKILL);
}

TEST_CASE("SIGTERM to a worker alone is its death") {
  testing::check_killed_worker({"cpu", 2}, 1, SIGTERM);
}

TEST_CASE("a worker that is stopped in the middle of the work is named after the step timeout") {
  if (testing::kSanitized) SKIP_TEST("waits, for a timeout that is long with a sanitizer");
  for (const int rank : {0, 1}) testing::check_stopped_worker({"cpu", 2}, rank);
}

TEST_CASE("SIGINT, SIGTERM and SIGHUP stop the run within 2 s") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    testing::check_signalled_launcher({"cpu", 2}, signal);
}

TEST_CASE("SIGINT stops a run that a script started in the background, with SIGINT ignored") {
  Program program(selftest(2, {"--seconds", "300"}), [] { ::signal(SIGINT, SIG_IGN); });
  REQUIRE(program.await_error("selftest: 1 of 300 s"));
  program.signal(SIGINT);
  CHECK(program.wait() == 130);
}

TEST_CASE("a run under nohup goes on when its terminal goes") {
  Program program(selftest(2, {"--seconds", "2"}), [] { ::signal(SIGHUP, SIG_IGN); });
  REQUIRE(program.await_error("selftest: 1 of 2 s"));
  program.signal(SIGHUP);
  CHECK(program.wait() == 0);
}

// The time from the second SIGINT to the end.
double second_interrupt_seconds() {
  Program program(selftest(2, {"--seconds", "300"}));
  const std::vector<pid_t> workers = program.workers(2);
  REQUIRE(program.await_error("selftest: 1 of 300 s"));
  ::kill(workers[1], SIGSTOP);
  program.signal(SIGINT);
  REQUIRE(program.await_error("stopping: SIGINT"));
  const std::int64_t start = now_ns();
  program.signal(SIGINT);
  CHECK(program.wait() == 130);
  return seconds_since(start);
}

TEST_CASE("a second SIGINT does not wait for a worker that does not end") {
  // Waiting takes 1.2 s at least; a machine that is busy with other things may take as long once.
  double seconds = second_interrupt_seconds();
  for (int i = 0; i < 4 && seconds >= 0.9; ++i) seconds = second_interrupt_seconds();
  CHECK(seconds < 0.9);
}

TEST_CASE(
    "workers are gone within 2 s after their launcher was killed, and leave nothing in /dev/shm") {
  testing::check_killed_launcher({"cpu", 3});
  CHECK(testing::lingering_shm_names().empty());
}

TEST_CASE("two launchers at the same time do not disturb each other") {
  testing::check_two_launchers({"cpu", 2});
}

TEST_CASE("a launcher that was stopped for longer than the step timeout goes on") {
  if (testing::kSanitized) SKIP_TEST("waits, for a timeout that is long with a sanitizer");
  Program program(selftest(2, {"--seconds", "4", "--step-timeout", "1"}));
  REQUIRE(program.await_error("selftest: 1 of 4 s"));
  program.signal(SIGSTOP);
  ::sleep(2);  // longer than the timeout
  program.signal(SIGCONT);
  CHECK(program.wait() == 0);
  CHECK(program.output().ends_with("all checks passed\n"));
}

TEST_CASE("a whole run that was stopped for longer than the step timeout goes on") {
  if (testing::kSanitized) SKIP_TEST("waits, for a timeout that is long with a sanitizer");
  Program program(selftest(2, {"--seconds", "4", "--step-timeout", "1"}));
  std::vector<pid_t> all = program.workers(2);
  all.insert(all.begin(), program.pid());
  REQUIRE(program.await_error("selftest: 1 of 4 s"));
  for (const pid_t pid : all) ::kill(pid, SIGSTOP);
  ::sleep(2);  // longer than the timeout
  for (const pid_t pid : all) ::kill(pid, SIGCONT);
  CHECK(program.wait() == 0);
  CHECK(program.output().ends_with("all checks passed\n"));
}

TEST_CASE(
    "closed standard files neither crash nor hang a run; a result that nobody can get fails") {
  Program no_errors(selftest(2, {"--seconds", "1.5"}), [] { ::close(STDERR_FILENO); });
  CHECK(no_errors.wait() == 0);
  CHECK(no_errors.output().ends_with("all checks passed\n"));
  Program nothing(selftest(2), [] {
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::close(fd);
  });
  CHECK(nothing.wait() == 1);
}

TEST_CASE("results that cannot be written are a failure that says so") {
  Program program(selftest(1), [] { ::dup2(::open("/dev/full", O_WRONLY), STDOUT_FILENO); });
  CHECK(program.wait() == 1);
  CHECK(program.errors().find(
            "writing the results to standard output: No space left on device (ENOSPC)") !=
        std::string::npos);
}

TEST_CASE("a standard error that nobody reads does not stop supervision") {
  const FullPipe full;
  Program program(selftest(2, {"--seconds", "300"}), [&] { full.be_standard_error(); });
  const std::vector<pid_t> workers = program.workers(2);
  ::usleep(300'000);
  ::kill(workers[1], SIGKILL);
  CHECK(program.wait(std::chrono::seconds(60)) == 3);
}

TEST_CASE("an error that nobody reads does not hold up the end of a program") {
  const FullPipe full;
  Program program({"selftest", "--frobnicate"}, [&] { full.be_standard_error(); });
  CHECK(program.wait(std::chrono::seconds(20)) == 2);
}

TEST_CASE("a /dev/shm that is too small is told in one line, before anything is started") {
  Program program = with_own_shm("size=64k");
  const int exit_code = program.wait();
  if (exit_code == kNotAllowed) SKIP_TEST("needs the right to mount a file system");
  CHECK(exit_code == 1);
  CHECK(program.output() == "");
  CHECK(program.errors().find("/dev/shm") != std::string::npos);
  CHECK(lines_of(program.errors()) == 1);
}

TEST_CASE("a /dev/shm that cannot be written is told in one line") {
  Program program = with_own_shm("size=64m", MS_RDONLY);
  const int exit_code = program.wait();
  if (exit_code == kNotAllowed) SKIP_TEST("needs the right to mount a file system");
  CHECK(exit_code == 1);
  CHECK(program.errors().find("/dev/shm") != std::string::npos);
  CHECK(lines_of(program.errors()) == 1);
}

TEST_CASE(
    "64 MiB of /dev/shm, a container's default, are enough for 8 ranks, also on fewer cores") {
  if (testing::kSanitized) SKIP_TEST("takes minutes with a sanitizer");
  Program program(selftest(8), [] {
    if (!mount_own_shm("size=64m", 0)) ::_exit(kNotAllowed);
  });
  const int exit_code = program.wait();
  if (exit_code == kNotAllowed) SKIP_TEST("needs the right to mount a file system");
  CHECK(exit_code == 0);
}

}  // namespace nvllm::launcher
