#include "launcher/chat/terminal/terminal_watcher.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

namespace nvllm::launcher {
namespace {

// Disables bracketed paste.
constexpr std::string_view kPlainPaste = "\033[?2004l";

// All other descriptors are closed, because other processes may wait for their ends (pipes of
// workers, for example).
void keep_only(int terminal, int pipe) {
  // Moved to 0 and 1, whatever their numbers are.
  const int terminal_copy = ::fcntl(terminal, F_DUPFD, 3);
  const int pipe_copy = ::fcntl(pipe, F_DUPFD, 3);
  ::dup2(terminal_copy, 0);
  ::dup2(pipe_copy, 1);
  if (::syscall(SYS_close_range, 2U, ~0U, 0U) == 0) return;
  const auto files = static_cast<int>(::sysconf(_SC_OPEN_MAX));
  for (int fd = 2; fd < files; ++fd) ::close(fd);
}

bool same(const termios& a, const termios& b) {
  return a.c_iflag == b.c_iflag && a.c_oflag == b.c_oflag && a.c_lflag == b.c_lflag &&
         std::memcmp(a.c_cc, b.c_cc, sizeof(a.c_cc)) == 0;
}

// Runs in the forked process, whose memory is a copy taken while other threads ran: system calls
// only.
[[noreturn]] void watch(int terminal, int pipe, const termios& before, const termios& changed) {
  // A process group of its own: signals to the parent's group do not reach it. A process that is
  // not in the foreground may only change the terminal if it ignores SIGTTOU.
  ::setpgid(0, 0);
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_IGN);
  keep_only(terminal, pipe);
  char nothing = 0;
  while (::read(1, &nothing, 1) < 0 && errno == EINTR) {
  }
  termios now{};
  if (::tcgetattr(0, &now) == 0 && same(now, changed)) {
    ::tcsetattr(0, TCSANOW, &before);
    [[maybe_unused]] const ssize_t n = ::write(0, kPlainPaste.data(), kPlainPaste.size());
  }
  ::_exit(0);
}

}  // namespace

TerminalWatcher::TerminalWatcher(int terminal, const termios& before, const termios& changed) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return;
  const UniqueFd pipe(ends[0]);
  alive_.reset(ends[1]);
  pid_ = ::fork();
  if (pid_ == 0) watch(terminal, pipe.get(), before, changed);
}

TerminalWatcher::~TerminalWatcher() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace nvllm::launcher
