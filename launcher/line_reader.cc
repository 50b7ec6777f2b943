#include "launcher/line_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/error.h"

namespace nvllm::launcher {
namespace {
constexpr std::size_t kChunk = 1 << 16;
}

LineReader::LineReader(const std::string& path, std::function<void()> before_wait)
    : name_(path == "-" ? "standard input" : path), before_wait_(std::move(before_wait)) {
  if (path == "-") {
    fd_ = STDIN_FILENO;
    return;
  }
  file_ = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file_) fail_errno("--input ", path);
  fd_ = file_.get();
}

std::optional<std::string> LineReader::next() {
  std::size_t searched = at_;
  while (true) {
    const std::size_t end = buffer_.find('\n', searched);
    if (end != std::string::npos) {
      std::string line = buffer_.substr(at_, end - at_);
      at_ = end + 1;
      return line;
    }
    if (ended_) {
      if (at_ == buffer_.size()) return std::nullopt;
      std::string line = buffer_.substr(at_);
      at_ = buffer_.size();
      return line;
    }
    buffer_.erase(0, std::exchange(at_, 0));
    const std::size_t had = buffer_.size();
    searched = had;
    before_wait_();
    buffer_.resize(had + kChunk);
    ssize_t got = 0;
    do {
      got = ::read(fd_, buffer_.data() + had, kChunk);
    } while (got < 0 && errno == EINTR);
    if (got < 0) fail_errno("reading ", name_);
    buffer_.resize(had + static_cast<std::size_t>(got));
    ended_ = got == 0;
  }
}

}  // namespace nvllm::launcher
