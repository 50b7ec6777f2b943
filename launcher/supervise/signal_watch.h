// SignalWatch: the signals that ask a program to stop, as a file descriptor.
#pragma once

#include <signal.h>

#include <optional>

#include "base/unique_fd.h"

namespace nvllm::launcher {

// SignalWatch makes the signals that ask a program to stop (SIGINT, SIGTERM, SIGHUP) available as a
// file descriptor for poll(), while it exists. A SIGHUP that was ignored at the start (nohup) stays
// ignored. Create it while the process has one thread; children inherit the blocked signals.
class SignalWatch {
 public:
  SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  ~SignalWatch();

  int fd() const { return fd_.get(); }
  // Returns the next signal that has arrived, if any. Does not wait.
  std::optional<int> next_signal();

 private:
  sigset_t before_;
  UniqueFd fd_;
};

}  // namespace nvllm::launcher
