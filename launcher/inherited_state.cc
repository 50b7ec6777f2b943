#include "launcher/inherited_state.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/error.h"
#include "launcher/cli/option_value.h"

namespace nvllm::launcher {
namespace {

// Enough for a checkpoint in a thousand files and a few thousand connections.
constexpr rlim_t kOpenFiles = 65536;

// Signals sent by a terminal, or relevant at one: the parent's choice is kept.
constexpr std::array kTerminalSignals = {SIGHUP, SIGINT, SIGQUIT, SIGTSTP, SIGTTIN, SIGTTOU};

void reset_signals() {
  for (int signal = 1; signal <= SIGRTMAX; ++signal) {
    struct sigaction now {};
    // Only SIG_IGN can be inherited; a handler belongs to this program, for example to a sanitizer.
    if (::sigaction(signal, nullptr, &now) != 0 || now.sa_handler != SIG_IGN) continue;
    if (std::ranges::find(kTerminalSignals, signal) != kTerminalSignals.end()) continue;
    ::signal(signal, SIG_DFL);
  }
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
}

// The lowest free number is taken, so in this order each gets its own.
void open_standard_files() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) != -1) continue;
    const int flags = fd == STDERR_FILENO ? O_WRONLY : O_RDONLY;
    if (::open("/dev/null", flags) == fd) continue;
    // A system without /dev: this descriptor can neither be read nor written, but it is open.
    if (::open("/", O_RDONLY | O_DIRECTORY) == fd) continue;
    refuse("file descriptor ", fd, " is closed, and so it stays: /dev/null: ", errno_text(errno));
  }
}

// Returns the new limit.
rlim_t raise_limit(__rlimit_resource_t resource, rlim_t wanted) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0) return RLIM_INFINITY;
  if (limit.rlim_cur >= wanted) return limit.rlim_cur;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  ::setrlimit(resource, &limit);
  ::getrlimit(resource, &limit);
  return limit.rlim_cur;
}

void reset_stacks() {
  // glibc takes the stack size of threads from the limit at program start: 2 MiB if unlimited.
  pthread_attr_t attributes;
  if (::pthread_getattr_default_np(&attributes) == 0) {
    ::pthread_attr_setstacksize(&attributes, kStackBytes);
    ::pthread_setattr_default_np(&attributes);
    ::pthread_attr_destroy(&attributes);
  }
  const rlim_t limit = raise_limit(RLIMIT_STACK, kStackBytes);
  if (limit >= kMinStackBytes) return;
  refuse("a stack of ", limit >> 10, " KiB (ulimit -s) is too small: nvllm needs ",
         kMinStackBytes >> 10, "; run ulimit -s ", kStackBytes >> 10, " before it");
}

}  // namespace

void reset_inherited_state() {
  reset_signals();
  open_standard_files();
  ::umask(::umask(0) & (S_IRWXG | S_IRWXO));
  raise_limit(RLIMIT_NOFILE, kOpenFiles);
  reset_stacks();
}

}  // namespace nvllm::launcher
