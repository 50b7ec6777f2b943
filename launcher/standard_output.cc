#include "launcher/standard_output.h"

#include <unistd.h>

#include <cerrno>

namespace nvllm::launcher {

void write_results(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EPIPE) throw OutputClosed("standard output: its reader has gone");
    if (written < 0) fail_errno("writing the results to standard output");
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace nvllm::launcher
