#include "launcher/serve/stdin_watch.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

namespace nvllm::launcher {
namespace {

std::atomic<int> signals = 0;

// Standard input is a pipe, whose other end this holds.
class PipedStdin {
 public:
  PipedStdin() : before_(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)) {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    writing_ = UniqueFd(ends[1]);
    const UniqueFd reading(ends[0]);
    REQUIRE(::dup2(reading.get(), STDIN_FILENO) == STDIN_FILENO);
  }
  PipedStdin(const PipedStdin&) = delete;
  PipedStdin& operator=(const PipedStdin&) = delete;
  ~PipedStdin() { ::dup2(before_.get(), STDIN_FILENO); }
  void close() { writing_.reset(); }

 private:
  const UniqueFd before_;
  UniqueFd writing_;
};

void set_handler(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;  // without SA_RESTART: calls end with EINTR
  REQUIRE(::sigaction(signal, &action, nullptr) == 0);
}

// Waits until it is true, for at most ten seconds.
template <typename Condition>
bool becomes(Condition condition) {
  for (int i = 0; i < 2000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return condition();
}

TEST_CASE("the end of standard input is told where a signal has interrupted the wait for it") {
  PipedStdin piped;
  std::atomic<bool> closed = false;
  set_handler(SIGUSR1, [](int) { ++signals; });
  const StdinWatch watch([&] { closed = true; });
  sigset_t blocked;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGUSR1);
  ::pthread_sigmask(SIG_BLOCK, &blocked, nullptr);  // in this thread, so that the other one gets it
  for (int sent = 1; sent <= 3; ++sent) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // now it waits
    REQUIRE(::kill(::getpid(), SIGUSR1) == 0);
    REQUIRE(becomes([&] { return signals == sent; }));
  }
  CHECK_FALSE(closed);
  piped.close();
  CHECK(becomes([&] { return closed.load(); }));
  ::pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
  set_handler(SIGUSR1, SIG_DFL);
}

}  // namespace
}  // namespace nvllm::launcher
