// Inherited state: signals, closed files, limits, a minimal environment. Every run ends normally,
// or with one line that says what is missing.
#include "launcher/inherited_state.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "launcher/cli/program.h"
#include "launcher/testing/program.h"
#include "launcher/testing/text_folder.h"
#include "testing/sanitizers.h"
#include "testing/skip.h"

namespace nvllm::launcher {
namespace {

using testing::Program;

// The fastest run that has workers.
class Run {
 public:
  explicit Run(const std::function<void()>& prepare)
      : program_(model_.arguments("generate", {"--prompt=hi", "--max-tokens=1"}), prepare),
        code_(program_.wait()) {}
  int code() const { return code_; }
  std::string errors() const { return program_.errors(); }
  bool answered() const { return program_.output().find("token_ids") != std::string::npos; }
  bool fine() const { return code_ == kExitFine && answered(); }

 private:
  const testing::TextFolder model_;
  Program program_;
  const int code_;
};

std::vector<std::string> long_selftest(const char* ranks) {
  return {"selftest", "--device", "cpu", "--tp", ranks, "--seconds", "300"};
}

// The result of `body` in a process of its own, 0 to 255.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(body());
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

bool may_be_ignored(int signal) {
  return signal != SIGKILL && signal != SIGSTOP && (signal < 32 || signal >= SIGRTMIN);
}

void (*disposition_of(int signal))(int) {
  struct sigaction now {};
  ::sigaction(signal, nullptr, &now);
  return now.sa_handler;
}

void limit(__rlimit_resource_t resource, rlim_t soft, rlim_t hard) {
  const rlimit limit = {soft, hard};
  ::setrlimit(resource, &limit);
}

// One line that names the exceeded limit and the fix.
bool is_clear(const std::string& errors, const std::string& fix) {
  return errors.starts_with("nvllm-launch: ") && errors.size() <= 300 &&
         std::ranges::count(errors, '\n') == 1 && errors.find(fix) != std::string::npos;
}

}  // namespace

TEST_CASE("each signal that is ignored or blocked at the start has its usual meaning afterwards") {
  for (int signal = 1; signal <= SIGRTMAX; ++signal) {
    if (!may_be_ignored(signal)) continue;
    CAPTURE(signal);
    const bool terminals = signal == SIGHUP || signal == SIGINT || signal == SIGQUIT ||
                           signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU;
    const bool ignored = terminals || signal == SIGPIPE || signal == SIGXFSZ;
    CHECK(in_child([&] {
            ::signal(signal, SIG_IGN);
            sigset_t blocked;
            sigemptyset(&blocked);
            sigaddset(&blocked, signal);
            ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
            reset_inherited_state();
            ::sigprocmask(SIG_BLOCK, nullptr, &blocked);
            if (sigismember(&blocked, signal) != 0) return 1;
            return disposition_of(signal) == (ignored ? SIG_IGN : SIG_DFL) ? 0 : 2;
          }) == 0);
  }
}

TEST_CASE("closed standard files are open afterwards, in all combinations, each as itself") {
  for (int closed = 0; closed < 8; ++closed) {
    CAPTURE(closed);
    CHECK(in_child([&] {
            for (int fd = 0; fd < 3; ++fd) {
              if ((closed >> fd & 1) != 0) ::close(fd);
            }
            reset_inherited_state();
            for (int fd = 0; fd < 3; ++fd) {
              struct stat about {};
              if (::fstat(fd, &about) != 0) return 1;
              if ((closed >> fd & 1) != 0 && !S_ISCHR(about.st_mode)) return 2;
            }
            char byte = 0;
            if ((closed & 1) != 0 && ::read(0, &byte, 1) != 0) return 3;
            if ((closed & 2) != 0 && ::write(1, &byte, 1) != -1) return 4;
            return (closed & 4) == 0 || ::write(2, &byte, 1) == 1 ? 0 : 5;
          }) == 0);
  }
}

TEST_CASE("whatever the umask hides, this user may read what he writes") {
  CHECK(in_child([] {
          ::umask(0777);
          reset_inherited_state();
          return ::umask(0) == 077 ? 0 : 1;
        }) == 0);
}

TEST_CASE("threads have their stack whatever the limit was, and more files may be open") {
  CHECK(in_child([] {
          limit(RLIMIT_STACK, std::size_t{256} << 10, std::size_t{64} << 20);
          limit(RLIMIT_NOFILE, 16, 1000);
          reset_inherited_state();
          rlimit now{};
          ::getrlimit(RLIMIT_STACK, &now);
          if (now.rlim_cur != kStackBytes) return 1;
          ::getrlimit(RLIMIT_NOFILE, &now);
          if (now.rlim_cur != 1000) return 2;
          pthread_attr_t attributes;
          std::size_t size = 0;
          ::pthread_getattr_default_np(&attributes);
          ::pthread_attr_getstacksize(&attributes, &size);
          return size == kStackBytes ? 0 : 3;
        }) == 0);
}

TEST_CASE("a run with SIGCHLD ignored ends well, and names a worker that was killed") {
  const auto ignore = [] { ::signal(SIGCHLD, SIG_IGN); };
  CHECK(Run(ignore).fine());
  Program program(long_selftest("2"), ignore);
  const std::vector<pid_t> workers = program.workers(2);
  REQUIRE(program.await_error("selftest: 1 of 300 s"));
  ::kill(workers[1], SIGKILL);
  CHECK(program.wait() == kExitDied);
  CHECK(program.errors().find(str("nvllm-launch: rank 1 (pid ", workers[1],
                                  ") died: killed by SIGKILL")) != std::string::npos);
}

TEST_CASE("SIGTERM stops a run that inherited it ignored and blocked") {
  Program program(long_selftest("1"), [] {
    ::signal(SIGTERM, SIG_IGN);
    sigset_t all;
    sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, nullptr);
  });
  REQUIRE(program.await_error("selftest: 1 of 300 s"));
  program.signal(SIGTERM);
  CHECK(program.wait() == kExitSignal + SIGTERM);
}

TEST_CASE("a run with closed standard files: only results that nobody gets are a failure") {
  for (int closed = 0; closed < 8; ++closed) {
    CAPTURE(closed);
    const Run run([closed] {
      for (int fd = 0; fd < 3; ++fd) {
        if ((closed >> fd & 1) != 0) ::close(fd);
      }
    });
    const bool no_output = (closed & 2) != 0;
    CHECK(run.code() == (no_output ? kExitFailed : kExitFine));
    CHECK(run.answered() == !no_output);
  }
}

TEST_CASE("a stack that is too small is refused in one line; a soft limit is raised") {
  if (testing::kSanitized) SKIP_TEST("sanitizers need more stack than this");
  const Run small([] { limit(RLIMIT_STACK, 64 << 10, 64 << 10); });
  CHECK(small.code() == kExitUsage);
  CHECK(is_clear(small.errors(), "ulimit -s 8192"));
  CHECK(Run([] { limit(RLIMIT_STACK, 64 << 10, RLIM_INFINITY); }).fine());
  CHECK(Run([] { limit(RLIMIT_STACK, RLIM_INFINITY, RLIM_INFINITY); }).fine());
}

TEST_CASE("few open files are enough, and too few are told in one line") {
  if (testing::kSanitized) SKIP_TEST("sanitizers need files of their own at the end");
  for (const rlim_t files : {20, 8, 6, 4}) {
    CAPTURE(files);
    const Run run([files] { limit(RLIMIT_NOFILE, files, files); });
    INFO(run.errors());
    const bool clear = run.code() == kExitFailed && is_clear(run.errors(), "ulimit -n");
    CHECK((run.fine() || (files < 20 && clear)));
  }
}

TEST_CASE("little memory that may be mapped is enough, or told in one line") {
  if (testing::kSanitized) SKIP_TEST("sanitizers reserve more than any limit");
  // With less memory than its own file and the C library, the system does not start a program.
  const rlim_t file = std::filesystem::file_size(testing::launch_program()) >> 20;
  for (rlim_t mebibytes = file + 5; mebibytes <= 640; mebibytes += 75) {
    CAPTURE(mebibytes);
    const Run run([mebibytes] { limit(RLIMIT_AS, mebibytes << 20, mebibytes << 20); });
    INFO(run.errors());
    const bool clear = run.code() == kExitFailed && is_clear(run.errors(), "ulimit");
    CHECK((run.fine() || (mebibytes < 600 && clear)));
  }
}

TEST_CASE("few processes of a user are enough, or told in one line") {
  if (testing::kSanitized) SKIP_TEST("sanitizers need a process of their own at the end");
  if (::geteuid() != 0) SKIP_TEST("needs root, to be a user who has no processes");
  constexpr uid_t kNobodysUser = 54321;
  const testing::TextFolder model;
  std::filesystem::permissions(model.path(), std::filesystem::perms(0755));
  for (const rlim_t processes : {1, 2, 4, 6, 8}) {
    CAPTURE(processes);
    std::vector<std::string> words = model.arguments("generate", {"--prompt=hi", "--max-tokens=1"});
    Program program(words, [&] {
      // By its descriptor: that user may not look into the folder that it lies in.
      const int file = ::open(testing::launch_program().c_str(), O_RDONLY);
      if (::setgroups(0, nullptr) != 0 ||
          ::setresuid(kNobodysUser, kNobodysUser, kNobodysUser) != 0) {
        ::_exit(testing::kNotAllowed);
      }
      limit(RLIMIT_NPROC, processes, processes);
      words.insert(words.begin(), "nvllm-launch");
      std::vector<char*> argv;
      for (std::string& word : words) argv.push_back(word.data());
      argv.push_back(nullptr);
      ::fexecve(file, argv.data(), environ);
      ::_exit(testing::kNotAllowed);
    });
    const int code = program.wait();
    const std::string errors = program.errors();
    INFO(errors);
    if (code == testing::kNotAllowed) SKIP_TEST("this process may not become another user's");
    if (errors.find("Permission denied") != std::string::npos) {
      SKIP_TEST("another user may not read the model here");
    }
    const bool clear = code == kExitFailed && is_clear(errors, "ulimit -u");
    // A worker that has started reports it in its post-mortem.
    const bool told = code == kExitDied && errors.find("; see ulimit -u\n") != std::string::npos;
    CHECK((code == kExitFine || clear || told));
  }
}

TEST_CASE("no environment, and no current folder: the run is as always") {
  CHECK(Run([] { ::clearenv(); }).fine());
  CHECK(
      Run([] {
        for (const char* const name : {"TZ", "LANG", "LC_ALL", "HOME", "TMPDIR", "PATH", "TERM"}) {
          ::setenv(name, "/nowhere/\xff", 1);
        }
      }).fine());
  Program nowhere({"selftest", "--device", "cpu"}, [] {
    std::string folder = "/tmp/nvllm-gone-XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr || ::chdir(folder.c_str()) != 0) ::_exit(99);
    ::rmdir(folder.c_str());
  });
  CHECK(nowhere.wait() == kExitFine);
}

}  // namespace nvllm::launcher
