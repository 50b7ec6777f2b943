#include "launcher/serve/stdin_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/error.h"

namespace nvllm::launcher {

StdinWatch::StdinWatch(std::function<void()> on_closed)
    : stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), on_closed_(std::move(on_closed)) {
  if (!stop_) fail_errno("eventfd for --exit-when-stdin-closes");
  thread_ = std::thread([this] { run(); });
}

StdinWatch::~StdinWatch() {
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
}

void StdinWatch::run() const {
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

}  // namespace nvllm::launcher
