// StdinWatch: a thread that reads and discards standard input until it is closed
// (--exit-when-stdin-closes).
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <functional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/unique_fd.h"

namespace nvllm::launcher {

// It holds no lock while it waits, so that the process may fork. Signals must be blocked when it is
// created, so that they reach the threads that handle them.
class StdinWatch {
 public:
  // on_closed: called once, by the thread.
  explicit StdinWatch(std::function<void()> on_closed)
      : stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), on_closed_(std::move(on_closed)) {
    if (!stop_) fail_errno("eventfd for --exit-when-stdin-closes");
    thread_ = std::thread([this] { run(); });
  }
  StdinWatch(const StdinWatch&) = delete;
  StdinWatch& operator=(const StdinWatch&) = delete;
  ~StdinWatch() {
    ::eventfd_write(stop_.get(), 1);
    thread_.join();
  }

 private:
  void run() const {
    std::array<pollfd, 2> polled = {{{STDIN_FILENO, POLLIN, 0}, {stop_.get(), POLLIN, 0}}};
    while (true) {
      if (::poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return;
      if (polled[1].revents != 0) return;
      if (polled[0].revents == 0) continue;
      std::array<char, 4096> ignored;
      const ssize_t got = ::read(STDIN_FILENO, ignored.data(), ignored.size());
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (got <= 0) return on_closed_();
    }
  }

  const UniqueFd stop_;
  const std::function<void()> on_closed_;
  std::thread thread_;
};

}  // namespace nvllm::launcher
