#include "launcher/supervise/child.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
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

// Signals that a terminal sends to its whole foreground group. SIGTERM is not one of them: if sent
// to a worker, it is meant for that worker.
constexpr std::array kTerminalSignals = {SIGINT, SIGQUIT, SIGHUP};

// Closes the launcher's connections: a worker that held one open would keep its client waiting.
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
  // The parent may have died between fork() and prctl(): then that signal is never sent.
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
  // stdio buffers are empty: the parent has flushed them before the fork.
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
  return known() && WIFEXITED(*status_) && WEXITSTATUS(*status_) == 0;
}

bool ExitStatus::by_signal() const {
  return known() && WIFSIGNALED(*status_);
}

bool ExitStatus::killed_by(int signal) const {
  return by_signal() && WTERMSIG(*status_) == signal;
}

std::string ExitStatus::describe() const {
  if (!known()) return "ended, status unknown";
  if (by_signal()) return "killed by " + signal_name(WTERMSIG(*status_));
  return str("exit code ", WEXITSTATUS(*status_));
}

Child Child::start(const std::function<int()>& body) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail_errno("pipe for a worker's output");
  Child child;
  child.output_.reset(ends[0]);
  const UniqueFd write_end(ends[1]);
  std::fflush(nullptr);  // otherwise both processes would write the buffered text

  const pid_t parent = ::getpid();
  child.pid_ = ::fork();
  if (child.pid_ < 0) fail_errno("fork of a worker; raise the limit of processes (ulimit -u)");
  if (child.pid_ == 0) {
    become_worker(parent, write_end.get());
    const int code = run(body);
    std::fflush(nullptr);
    // Not exit(): destructors of statics and atexit handlers belong to the launcher.
    ::_exit(code);
  }
  child.pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, child.pid_, 0)));
  // Kernels before 5.4 have pidfds that cannot be waited on.
  constexpr int kProbe = WEXITED | WNOHANG | WNOWAIT;
  siginfo_t info{};
  if (child.pidfd_ &&
      ::waitid(P_PIDFD, static_cast<id_t>(child.pidfd_.get()), &info, kProbe) != 0 &&
      errno == EINVAL) {
    child.pidfd_.reset();
  }
  return child;
}

int Child::look(siginfo_t& info) const {
  constexpr int kAny = WEXITED | WSTOPPED | WCONTINUED | WNOHANG;
  int result = -1;
  do {
    info = {};
    result = pidfd_ ? ::waitid(P_PIDFD, static_cast<id_t>(pidfd_.get()), &info, kAny)
                    : ::waitid(P_PID, static_cast<id_t>(pid_), &info, kAny);
  } while (result != 0 && errno == EINTR);
  return result;
}

void Child::update() {
  siginfo_t info;
  while (!status_) {
    if (look(info) != 0) {  // ECHILD: there is no such child any more
      status_ = ExitStatus::unknown();
      return;
    }
    if (info.si_pid == 0) return;
    switch (info.si_code) {
      case CLD_STOPPED:
      case CLD_TRAPPED: stopped_by_ = info.si_status; break;
      case CLD_CONTINUED: stopped_by_.reset(); break;
      case CLD_EXITED: status_.emplace(W_EXITCODE(info.si_status, 0)); break;
      default: status_.emplace(W_EXITCODE(0, info.si_status)); break;  // killed, or dumped core
    }
  }
}

void Child::kill() const {
  if (status_) return;
  if (pidfd_) {
    ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
  } else {
    ::kill(pid_, SIGKILL);
  }
}

void Child::end() {
  kill();
  const std::int64_t start = now_ns();
  for (update(); !status_ && now_ns() - start < kEndLimit.count(); update()) {
    pollfd polled = {pidfd_.get(), POLLIN, 0};
    ::poll(&polled, 1, pidfd_ ? 50 : 1);
  }
}

}  // namespace nvllm::launcher
