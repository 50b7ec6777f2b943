// Invalid command lines, given to the program: a one-line error, exit code 2, and nothing is
// started.
#include <doctest/doctest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

#include "launcher/testing/bad_command_lines.h"
#include "launcher/testing/program.h"
#include "testing/ranks.h"
#include "testing/sanitizers.h"
#include "testing/skip.h"

namespace nvllm::launcher {
namespace {

using testing::Program;

constexpr int kKilledBySigsys = 1000 + SIGSYS;
constexpr int kNoRule = 99;

// From now on, even after exec(), a process that starts another one, or a thread, is killed. False:
// the system does not allow such a rule, or a sanitizer has threads of its own.
bool forbid_processes() {
  if (testing::kSanitized) return false;
  const auto kill_if = [](unsigned number) {
    return std::array<sock_filter, 2>{{BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
                                       BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)}};
  };
  std::vector<sock_filter> rules = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const unsigned number : {SYS_clone, SYS_clone3, SYS_fork, SYS_vfork}) {
    for (const sock_filter& rule : kill_if(number)) rules.push_back(rule);
  }
  rules.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program = {.len = static_cast<unsigned short>(rules.size()),
                              .filter = rules.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace

TEST_CASE("there are a hundred of them, and every command has some") {
  CHECK(testing::bad_command_lines().size() >= 100);
}

TEST_CASE("one line, exit code 2, nothing started") {
  for (const testing::BadCommandLine& line : testing::bad_command_lines()) {
    Program program(line.words, [] { forbid_processes(); });
    CAPTURE(line.message);
    CHECK(program.wait() == 2);
    CHECK(program.output() == "");
    CHECK(program.errors() == "nvllm-launch: " + line.message + "\n");
  }
  CHECK(testing::lingering_shm_names().empty());
}

TEST_CASE("what a command line has of newlines and of a terminal's commands does not get through") {
  Program program({"--a\nb\033[2Jc"}, [] { forbid_processes(); });
  CHECK(program.wait() == 2);
  CHECK(program.errors() ==
        "nvllm-launch: unknown option '--a\\nb\\x1b[2Jc'; see nvllm-launch chat --help\n");
}

TEST_CASE("the rule against processes is one that a run breaks") {
  Program program({"selftest", "--device=cpu"}, [] {
    if (!forbid_processes()) ::_exit(kNoRule);
  });
  const int exit_code = program.wait();
  if (exit_code == kNoRule) SKIP_TEST("needs seccomp, and no sanitizer");
  CHECK(exit_code == kKilledBySigsys);
}

}  // namespace nvllm::launcher
