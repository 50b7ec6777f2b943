// Child: one forked worker process, from fork until it has been reaped.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace nvllm::launcher {

// Why a process ended, from the status of waitpid().
class ExitStatus {
 public:
  explicit ExitStatus(int wait_status) : status_(wait_status) {}
  // It has ended, but the system does not say how: this process ignores SIGCHLD (a program that
  // uses the library may), or other code has reaped the child.
  static ExitStatus unknown() { return ExitStatus(std::nullopt); }

  bool known() const { return status_.has_value(); }
  // The status of waitpid(); only if known.
  int wait_status() const { return *status_; }
  bool fine() const;  // exit code 0
  bool killed_by(int signal) const;
  bool by_signal() const;
  std::string describe() const;  // "killed by SIGKILL", "exit code 3"

 private:
  explicit ExitStatus(std::nullopt_t) {}
  std::optional<int> status_;
};

// "SIGKILL" for 9.
std::string signal_name(int signal);

// Not thread-safe. Signals and waits use the pidfd, so they refer to this process even if its pid
// has been reused.
class Child {
 public:
  // A killed process that holds a device may take a moment to end.
  static constexpr Nanoseconds kEndLimit = std::chrono::seconds(5);

  // Forks. The child dies with its parent, writes its output into a pipe, ignores the signals that
  // a terminal sends to the whole foreground group (only the launcher acts on them), runs the
  // function and exits with its result; it never returns. The process must have a single thread.
  static Child start(const std::function<int()>& body);

  Child(Child&&) noexcept = default;
  Child& operator=(Child&&) noexcept = default;

  pid_t pid() const { return pid_; }
  // Readable once the process has ended; -1 on kernels without pidfd.
  int pidfd() const { return pidfd_.get(); }
  // The reading end of its standard output and error; call it once.
  UniqueFd take_output() { return std::move(output_); }

  // Polls whether it has ended, been stopped or been continued.
  void update();
  // How it ended; empty while it runs.
  const std::optional<ExitStatus>& status() const { return status_; }
  // The signal that has stopped it (such as SIGSTOP): alive, but not running.
  const std::optional<int>& stopped_by() const { return stopped_by_; }
  void kill() const;  // SIGKILL, unless it has ended
  void end();         // kills it and waits for its end, at most kEndLimit

 private:
  Child() = default;
  // Like waitid(), without waiting; si_pid is 0 if nothing has changed.
  int look(siginfo_t& info) const;

  pid_t pid_ = -1;
  UniqueFd pidfd_;
  UniqueFd output_;
  std::optional<ExitStatus> status_;
  std::optional<int> stopped_by_;
};

}  // namespace nvllm::launcher
