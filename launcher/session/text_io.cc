#include "launcher/generate/line_reader.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace nvllm::launcher {
namespace {

constexpr std::size_t kChunk = std::size_t{256} << 10;

}  // namespace

LineReader::LineReader(const std::string& path, std::size_t longest_line)
    : name_(path == "-" ? "standard input" : path), longest_line_(longest_line) {
  file_.reset(path == "-" ? ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)
                          : ::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file_) fail_errno("--input ", path);
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) fail_errno("--input ", path);
  if (S_ISDIR(status.st_mode)) fail("--input ", path, ": is a folder; pass a file of JSON lines");
  if (S_ISREG(status.st_mode)) total_bytes_ = static_cast<std::uint64_t>(status.st_size);
}

LineReader::Found LineReader::next(Nanoseconds limit) {
  while (true) {
    const std::size_t newline = buffer_.find('\n', searched_);
    if (newline != std::string::npos) return give(newline - begin_, 1);
    searched_ = buffer_.size();
    if (at_end_) {
      const std::size_t rest = buffer_.size() - begin_;
      return rest + dropped_ == 0 ? Found::end : give(rest, 0);
    }
    if (buffer_.size() - begin_ > longest_line_) {
      dropped_ += buffer_.size() - begin_;
      begin_ = buffer_.size();
    }
    if (!fill(limit)) return Found::nothing_yet;
  }
}

LineReader::Found LineReader::give(std::size_t length, std::size_t newline) {
  too_long_ = dropped_ + length > longest_line_;
  line_ = too_long_ ? std::string_view() : std::string_view(buffer_).substr(begin_, length);
  read_bytes_ += dropped_ + length + newline;
  ++number_;
  torn_ = newline == 0;
  dropped_ = 0;
  begin_ += length + newline;
  searched_ = begin_;
  return Found::line;
}

// False: nothing came within the limit.
bool LineReader::fill(Nanoseconds limit) {
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(limit).count();
  pollfd polled = {file_.get(), POLLIN, 0};
  if (::poll(&polled, 1, static_cast<int>(milliseconds)) <= 0) return false;
  buffer_.erase(0, begin_);
  searched_ -= begin_;
  begin_ = 0;
  line_ = {};
  const std::size_t old = buffer_.size();
  buffer_.resize(old + kChunk);
  const ssize_t got = ::read(file_.get(), buffer_.data() + old, kChunk);
  const int error = errno;
  buffer_.resize(old + static_cast<std::size_t>(got > 0 ? got : 0));
  if (got >= 0) {
    at_end_ = got == 0;
    return true;
  }
  if (error == EAGAIN || error == EINTR) return false;
  errno = error;
  fail_errno("reading ", name_);
}

}  // namespace nvllm::launcher
