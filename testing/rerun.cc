#include "testing/rerun.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <vector>

#include "base/error.h"
#include "base/unique_fd.h"

namespace nvllm::testing {
namespace {

// The environment with the variable, and without Bazel's request for a result file, which the
// caller writes.
std::vector<std::string> environment(const std::string& variable, const std::string& value) {
  std::vector<std::string> all = {variable + "=" + value};
  for (char** entry = ::environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (text.starts_with(variable + "=") || text.starts_with("XML_OUTPUT_FILE=")) continue;
    all.push_back(text);
  }
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

// Reads until all writers have closed; false: some are still open after the limit.
bool read_all(int from, std::chrono::seconds limit, std::string& text) {
  const auto end = std::chrono::steady_clock::now() + limit;
  std::array<char, 4096> piece;
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    pollfd ready = {.fd = from, .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || ::poll(&ready, 1, static_cast<int>(left.count())) == 0) return false;
    const ssize_t bytes = ::read(from, piece.data(), piece.size());
    if (bytes == 0) return true;
    if (bytes > 0) text.append(piece.data(), static_cast<std::size_t>(bytes));
  }
}

}  // namespace

Rerun rerun_case(const std::string& case_name, const std::string& variable,
                 const std::string& value, std::chrono::seconds limit) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail_errno("making a pipe");
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, writing.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, writing.get(), STDERR_FILENO);

  std::vector<std::string> words = {"/proc/self/exe", "--test-case=" + case_name};
  std::vector<std::string> variables = environment(variable, value);
  pid_t child = 0;
  const int error = ::posix_spawn(&child, "/proc/self/exe", &actions, nullptr,
                                  pointers(words).data(), pointers(variables).data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) fail("starting this program again: ", errno_text(error));
  writing.reset();

  Rerun rerun;
  rerun.hung = !read_all(reading.get(), limit, rerun.output);
  if (rerun.hung) ::kill(child, SIGKILL);
  ::waitpid(child, &rerun.status, 0);
  return rerun;
}

Rerun rerun_until_race(const std::string& case_name, const std::string& variable,
                       const std::string& value) {
  constexpr int kMaxRuns = 5;
  Rerun rerun;
  for (int i = 0; i < kMaxRuns && !rerun.raced(); ++i) {
    rerun = rerun_case(case_name, variable, value);
  }
  return rerun;
}

}  // namespace nvllm::testing
