// Child: one forked worker process, from its fork until it has been reaped.
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
  // It has ended, and the system does not say how: this process ignores SIGCHLD (a program that
  // uses the library may), or another part of it has reaped the child.
  static ExitStatus unknown() { return ExitStatus(std::nullopt); }

  bool known() const { return status_.has_value(); }
  // As waitpid() gave it; only of a known one.
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

// Not thread-safe. Signals and waits go through the pidfd, so they mean this process even if its
// pid belongs to another one by now.
class Child {
 public:
  // A killed process that holds a device may take a moment to end.
  static constexpr Nanoseconds kEndLimit = std::chrono::seconds(5);

  // Forks. The child dies with its parent, writes its output into a pipe, ignores the signals that
  // a terminal sends to the whole foreground group (the launcher alone acts on them), runs the
  // function and exits with its result; it never returns. The process must have a single thread.
  static Child start(const std::function<int()>& body);

  Child(Child&&) noexcept = default;
  Child& operator=(Child&&) noexcept = default;

  pid_t pid() const { return pid_; }
  // Readable as soon as the process has ended; -1 on kernels without pidfd.
  int pidfd() const { return pidfd_.get(); }
  // The reading end of its standard output and error, once.
  UniqueFd take_output() { return std::move(output_); }

  // Asks the system, without waiting, whether it has ended, been stopped or been continued.
  void update();
  // How it ended; empty while it runs.
  const std::optional<ExitStatus>& status() const { return status_; }
  // The signal (SIGSTOP, say) that has stopped it: alive, but not running.
  const std::optional<int>& stopped_by() const { return stopped_by_; }
  void kill() const;  // SIGKILL, unless it has ended
  void end();         // kills it and waits for its end, kEndLimit at most

 private:
  Child() = default;
  // As waitid(), without waiting; si_pid is 0 where nothing has changed.
  int look(siginfo_t& info) const;

  pid_t pid_ = -1;
  UniqueFd pidfd_;
  UniqueFd output_;
  std::optional<ExitStatus> status_;
  std::optional<int> stopped_by_;
};

}  // namespace nvllm::launcher
