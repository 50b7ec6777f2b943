// Terminal: a program in a pseudo-terminal, for tests that type into it.
#pragma once

#include <doctest/doctest.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/clock.h"
#include "launcher/testing/program.h"

namespace nvllm::testing {

inline constexpr Nanoseconds kLimit = std::chrono::seconds(60);

// Not thread-safe.
class Terminal {
 public:
  explicit Terminal(const std::vector<std::string>& arguments, const char* no_colour = nullptr)
      : opened_(open()), program_(arguments, [this, no_colour] {
          ::setsid();
          ::ioctl(program_side_, TIOCSCTTY, 0);
          for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
            ::dup2(program_side_, fd);
          }
          ::close(our_side_);
          ::setenv("TERM", "xterm", 1);
          if (const char* const folder = std::getenv("TEST_TMPDIR")) {
            ::setenv("XDG_STATE_HOME", folder, 1);
          }
          ::unsetenv("NO_COLOR");
          if (no_colour != nullptr) ::setenv("NO_COLOR", no_colour, 1);
        }) {}
  ~Terminal() {
    ::close(our_side_);
    ::close(program_side_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& keys) {
    for (std::size_t at = 0; at < keys.size();) {
      // In parts, reading output in between: a terminal's buffer is limited.
      const std::size_t size = std::min<std::size_t>(keys.size() - at, 1024);
      const ssize_t written = ::write(our_side_, keys.data() + at, size);
      REQUIRE(written > 0);
      at += static_cast<std::size_t>(written);
      if (at < keys.size()) read();
    }
  }
  // Waits until the text appears, after what was awaited before.
  bool await(const std::string& text) {
    const std::int64_t end = now_ns() + kLimit.count();
    while (true) {
      const std::size_t at = seen_.find(text, awaited_);
      if (at != std::string::npos) {
        awaited_ = at + text.size();
        return true;
      }
      if (now_ns() > end) {
        MESSAGE("it showed: ", seen_);
        return false;
      }
      read();
    }
  }
  void resize(unsigned short columns) const {
    winsize window{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    ::ioctl(our_side_, TIOCSWINSZ, &window);
  }
  // Later waits ignore the output so far.
  void skip() { awaited_ = seen_.size(); }
  // Reads output for this time.
  void watch(Nanoseconds time) {
    const std::int64_t end = now_ns() + time.count();
    while (now_ns() < end) read();
  }
  bool shows(const std::string& text) const { return seen_.find(text) != std::string::npos; }
  bool echoes() const {
    termios now{};
    ::tcgetattr(program_side_, &now);
    return (now.c_lflag & ECHO) != 0 && (now.c_lflag & ICANON) != 0;
  }
  int wait() {
    // The remaining output must be read.
    const std::int64_t end = now_ns() + kLimit.count();
    while (!process_gone(program_.pid()) && now_ns() < end) read();
    return program_.wait();
  }
  const Program& program() const { return program_; }
  const std::string& seen() const { return seen_; }

 private:
  bool open() {
    winsize window{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
    REQUIRE(::openpty(&our_side_, &program_side_, nullptr, nullptr, &window) == 0);
    return true;
  }
  void read() {
    pollfd polled = {our_side_, POLLIN, 0};
    if (::poll(&polled, 1, 20) <= 0) return;
    std::array<char, 4096> bytes;
    const ssize_t got = ::read(our_side_, bytes.data(), bytes.size());
    if (got > 0) seen_.append(bytes.data(), static_cast<std::size_t>(got));
  }

  int our_side_ = -1, program_side_ = -1;
  bool opened_;
  Program program_;
  std::string seen_;
  std::size_t awaited_ = 0;
};

}  // namespace nvllm::testing
