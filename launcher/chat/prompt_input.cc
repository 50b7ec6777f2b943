#include "launcher/chat/prompt_input.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/error.h"
#include "base/text.h"

namespace nvllm::launcher {
namespace {

// No context holds more text.
constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
constexpr int kPatienceMs = 1000;

// Whether standard input was redirected for this program: not a terminal or /dev/null.
bool holds_text(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 &&
         (S_ISREG(status.st_mode) || S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode));
}

std::string read_all(int fd, const std::function<void(const std::string&)>& say) {
  std::string text;
  std::array<char, 65536> buffer;
  pollfd polled{fd, POLLIN, 0};
  if (::poll(&polled, 1, kPatienceMs) == 0) {
    say("reading the rest of the prompt from standard input; pass </dev/null if there is none");
  }
  while (true) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno("reading standard input");
    if (got == 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(got));
    if (text.size() > kMaxBytes) {
      fail("standard input has more than ", format_bytes(kMaxBytes), ", which no prompt may have");
    }
  }
}

}  // namespace

std::string with_standard_input(const std::string& prompt, int standard_input,
                                const std::function<void(const std::string&)>& say) {
  const bool alone = prompt == "-";
  if (!alone && !holds_text(standard_input)) return prompt;
  std::string text = read_all(standard_input, say);
  text.erase(text.find_last_not_of("\r\n") + 1);
  if (alone && text.empty()) fail("the prompt '-': standard input is empty");
  if (alone) return text;
  return text.empty() ? prompt : str(prompt, "\n\n", text);
}

}  // namespace nvllm::launcher
