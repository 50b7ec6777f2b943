#include "launcher/supervise/signal_watch.h"

#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/error.h"

namespace nvllm::launcher {

SignalWatch::SignalWatch() {
  sigset_t watched;
  sigemptyset(&watched);
  for (const int signal : {SIGINT, SIGTERM}) {
    // Ignored signals never reach a signalfd. A shell script ignores SIGINT for background jobs.
    ::signal(signal, SIG_DFL);
    sigaddset(&watched, signal);
  }
  struct sigaction hang_up {};
  ::sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) sigaddset(&watched, SIGHUP);
  ::pthread_sigmask(SIG_BLOCK, &watched, &before_);
  fd_.reset(::signalfd(-1, &watched, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!fd_) {
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    fail_errno("signalfd");
  }
}

SignalWatch::~SignalWatch() {
  while (next_signal()) {
  }
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

std::optional<int> SignalWatch::next_signal() {
  signalfd_siginfo info;
  if (::read(fd_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace nvllm::launcher
