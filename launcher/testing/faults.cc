#include "launcher/testing/faults.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "base/text.h"
#include "launcher/testing/program.h"
#include "testing/sanitizers.h"

namespace nvllm::testing {
namespace {

// Sanitized ranks need seconds for a large collective and its check.
constexpr int kStepTimeout = kSanitized ? 20 : 2;

std::vector<std::string> long_run(const Setup& setup) {
  return {"selftest",
          "--device",
          setup.device,
          "--tp",
          std::to_string(setup.ranks),
          "--seconds",
          "300",
          "--step-timeout",
          std::to_string(kStepTimeout)};
}

// Calls and collectives are going on by then.
void await_work(const Program& program) {
  REQUIRE_MESSAGE(program.await_error("selftest: 1 of 300 s"), program.errors());
}

bool all_gone_within(const std::vector<pid_t>& pids, double seconds) {
  const std::int64_t start = now_ns();
  while (!std::all_of(pids.begin(), pids.end(), process_gone)) {
    if (seconds_since(start) > seconds) return false;
    ::usleep(1000);
  }
  return true;
}

// The line of a rank in the post-mortem.
std::string line_of(const std::string& errors, int rank, pid_t pid) {
  const std::string begin = str("  rank ", rank, "  pid ", pid, "  ");
  const std::size_t at = errors.find(begin);
  if (at == std::string::npos) return "";
  return errors.substr(at, errors.find('\n', at) - at);
}

void check_post_mortem(const Program& program, const std::vector<pid_t>& workers, int culprit,
                       const std::string& fate) {
  const std::string errors = program.errors();
  INFO(errors);
  CHECK(program.output() == "");
  CHECK(errors.find(str("nvllm-launch: rank ", culprit, " (pid ",
                        workers[static_cast<std::size_t>(culprit)], ") ")) != std::string::npos);
  for (int rank = 0; rank < static_cast<int>(workers.size()); ++rank) {
    const std::string line = line_of(errors, rank, workers[static_cast<std::size_t>(rank)]);
    // The others may have noticed first, and given up by themselves.
    CHECK(line.find(rank == culprit ? fate : "; step ") != std::string::npos);
  }
}

}  // namespace

void check_killed_worker(const Setup& setup, int rank, int signal) {
  Program program(long_run(setup));
  const std::vector<pid_t> workers = program.workers(setup.ranks);
  await_work(program);
  const std::int64_t start = now_ns();
  ::kill(workers[static_cast<std::size_t>(rank)], signal);
  CHECK(program.wait() == 3);
  CHECK(seconds_since(start) < 1 * kLoad);
  CHECK(all_gone_within(workers, 0.1 * kLoad));
  check_post_mortem(program, workers, rank,
                    signal == SIGKILL ? "killed by SIGKILL; step " : "killed by SIGTERM; step ");
}

void check_stopped_worker(const Setup& setup, int rank) {
  Program program(long_run(setup));
  const std::vector<pid_t> workers = program.workers(setup.ranks);
  await_work(program);
  const std::int64_t start = now_ns();
  ::kill(workers[static_cast<std::size_t>(rank)], SIGSTOP);
  CHECK(program.wait() == 4);
  CHECK(seconds_since(start) < kStepTimeout + 1 * kLoad);
  CHECK(all_gone_within(workers, 0.1 * kLoad));
  check_post_mortem(program, workers, rank, "alive but stuck (stopped by SIGSTOP); step ");
}

void check_signalled_launcher(const Setup& setup, int signal) {
  Program program(long_run(setup));
  const std::vector<pid_t> workers = program.workers(setup.ranks);
  await_work(program);
  const std::int64_t start = now_ns();
  program.signal(signal);
  CHECK(program.wait() == 128 + signal);
  CHECK(seconds_since(start) < 2 * kLoad);
  CHECK(all_gone_within(workers, 0.1 * kLoad));
  CHECK(program.errors().find("died") == std::string::npos);
}

void check_killed_launcher(const Setup& setup) {
  Program program(long_run(setup));
  const std::vector<pid_t> workers = program.workers(setup.ranks);
  await_work(program);
  program.signal(SIGKILL);
  CHECK(all_gone_within(workers, 2 * kLoad));
  CHECK(program.wait() == 1000 + SIGKILL);
}

void check_two_launchers(const Setup& setup) {
  const std::vector<std::string> arguments = {"selftest", "--device", setup.device, "--tp",
                                              std::to_string(setup.ranks)};
  Program first(arguments), second(arguments);
  CHECK(first.wait() == 0);
  CHECK(second.wait() == 0);
  for (const Program* program : {&first, &second}) {
    CHECK(program->output().find("all checks passed") != std::string::npos);
    CHECK(program->errors() == "");
  }
}

}  // namespace nvllm::testing
