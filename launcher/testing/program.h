// Runs nvllm-launch as a user does: as a separate process, with files as its output.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace nvllm::testing {

// The path of nvllm-launch: $NVLLM_LAUNCH, among Bazel's runfiles, or next to this program.
std::string launch_program();

// Polls every millisecond; false: timed out.
bool await_until(const std::function<bool()>& condition,
                 Nanoseconds limit = std::chrono::seconds(60));

// Whether the process no longer runs (a zombie does not).
bool process_gone(pid_t pid);

class Program {
 public:
  // prepare: runs in the child, after its output was redirected and before the program is started.
  explicit Program(const std::vector<std::string>& arguments,
                   const std::function<void()>& prepare = {});
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program();  // kills it, if it runs

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  // Its children in the order in which they were forked: rank 0 first. Waits until there are
  // `count`.
  std::vector<pid_t> workers(int count) const;

  // Waits for its end; returns the exit code, or 1000 + the signal that killed it. -1: it was still
  // running after the limit, and was killed.
  int wait(Nanoseconds limit = std::chrono::seconds(120));

  std::string output() const;  // what it has written to standard output so far
  std::string errors() const;  // and to standard error
  // Waits until standard error holds the text; false after the limit.
  bool await_error(const std::string& text, Nanoseconds limit = std::chrono::seconds(60)) const;

 private:
  pid_t pid_ = -1;
  std::optional<int> exit_code_;
  UniqueFd output_;
  UniqueFd errors_;
};

// A program under test may get a /dev/shm of its own. The exit code if that is not possible.
inline constexpr int kNotAllowed = 99;

// Gives the calling process a private /dev/shm: `options` of a tmpfs ("size=64k"), and flags of
// mount(). False: this machine does not allow it.
bool mount_own_shm(const char* options, unsigned long flags = 0);

}  // namespace nvllm::testing
