#include "launcher/supervise/child.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "base/error.h"
#include "base/logging.h"

namespace nvllm::launcher {
namespace {

// Signals that a terminal sends to its whole foreground group. SIGTERM is not one of them: sent to
// a worker, it is meant for that worker.
constexpr std::array kTerminalSignals = {SIGINT, SIGQUIT, SIGHUP};

// Connections are the launcher's: a worker that held one open would keep its client waiting.
void close_sockets() {
  DIR* const files = ::opendir("/proc/self/fd");
  if (files == nullptr) return;
  while (const dirent* file = ::readdir(files)) {
    const int fd = std::atoi(file->d_name);
    struct stat about {};
    if (fd > STDERR_FILENO && ::fstat(fd, &about) == 0 && S_ISSOCK(about.st_mode)) ::close(fd);
  }
  ::closedir(files);
}

void become_worker(pid_t parent, int output) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died between fork() and prctl(): then nobody sends that signal any more.
  if (::getppid() != parent) ::_exit(1);

  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  for (const int signal : kTerminalSignals) ::sigaction(signal, &ignore, nullptr);
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  ::sigaction(SIGTERM, &usual, nullptr);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);

  close_sockets();
  // stdio holds nothing here: the parent has flushed it before the fork.
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ::dup2(nothing.get(), STDIN_FILENO);
}

int run(const std::function<int()>& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    log_error(error.what());
  } catch (...) {
    log_error("ended by an exception of unknown type");
  }
  return 1;
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? str("SIG", name) : str("signal ", signal);
}

bool ExitStatus::fine() const {
  return WIFEXITED(status_) && WEXITSTATUS(status_) == 0;
}

bool ExitStatus::by_signal() const {
  return WIFSIGNALED(status_);
}

bool ExitStatus::killed_by(int signal) const {
  return WIFSIGNALED(status_) && WTERMSIG(status_) == signal;
}

std::string ExitStatus::describe() const {
  if (by_signal()) return "killed by " + signal_name(WTERMSIG(status_));
  return str("exit code ", WEXITSTATUS(status_));
}

Child Child::start(const std::function<int()>& body) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail_errno("pipe for a worker's output");
  Child child;
  child.output_.reset(ends[0]);
  const UniqueFd write_end(ends[1]);
  std::fflush(nullptr);  // or both processes would write what is buffered

  const pid_t parent = ::getpid();
  child.pid_ = ::fork();
  if (child.pid_ < 0) fail_errno("fork of a worker; raise the limit of processes (ulimit -u)");
  if (child.pid_ == 0) {
    become_worker(parent, write_end.get());
    const int code = run(body);
    std::fflush(nullptr);
    // Not exit(): destructors of statics and atexit handlers are the launcher's.
    ::_exit(code);
  }
  child.pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, child.pid_, 0)));
  return child;
}

void Child::update() {
  int status = 0;
  while (!status_ && ::waitpid(pid_, &status, WNOHANG | WUNTRACED | WCONTINUED) == pid_) {
    if (WIFSTOPPED(status)) {
      stopped_by_ = WSTOPSIG(status);
    } else if (WIFCONTINUED(status)) {
      stopped_by_.reset();
    } else {
      status_.emplace(status);
    }
  }
}

void Child::kill() const {
  // An unreaped child keeps its pid, so this can hit nobody else.
  if (!status_) ::kill(pid_, SIGKILL);
}

void Child::end() {
  kill();
  int status = 0;
  if (!status_ && ::waitpid(pid_, &status, 0) == pid_) status_.emplace(status);
}

}  // namespace nvllm::launcher
