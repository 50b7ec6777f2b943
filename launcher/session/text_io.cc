#include "launcher/session/text_io.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "base/visible_text.h"

namespace nvllm::launcher {

namespace {

constexpr std::size_t kChunk = std::size_t{256} << 10;

}  // namespace

LineReader::LineReader(const std::string& path, std::size_t max_line)
    : name_(path == "-" ? "standard input" : path), max_line_(max_line) {
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
    if (newline != std::string::npos) return emit(newline - begin_, 1);
    searched_ = buffer_.size();
    if (at_end_) {
      const std::size_t rest = buffer_.size() - begin_;
      return rest + dropped_ == 0 ? Found::end : emit(rest, 0);
    }
    if (buffer_.size() - begin_ > max_line_) {
      dropped_ += buffer_.size() - begin_;
      begin_ = buffer_.size();
    }
    if (!fill(limit)) return Found::nothing_yet;
  }
}

LineReader::Found LineReader::emit(std::size_t length, std::size_t newline) {
  too_long_ = dropped_ + length > max_line_;
  line_ = too_long_ ? std::string_view() : std::string_view(buffer_).substr(begin_, length);
  read_bytes_ += dropped_ + length + newline;
  ++number_;
  torn_ = newline == 0;
  dropped_ = 0;
  begin_ += length + newline;
  searched_ = begin_;
  return Found::line;
}

// False: no input within the limit.
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

void check_standard_output() {
  const int flags = ::fcntl(STDOUT_FILENO, F_GETFL);
  if (flags != -1 && (flags & O_ACCMODE) != O_RDONLY) return;
  fail("standard output is closed, and results go there; open it, as in >FILE or >/dev/null");
}

namespace {

// Opening these names would truncate a file that standard output is redirected to.
bool is_standard_output(const std::string& path) {
  return path.empty() || path == "/dev/stdout" || path == "/dev/fd/1" || path == "/proc/self/fd/1";
}

}  // namespace

LineWriter::LineWriter(const std::string& path)
    : name_(is_standard_output(path) ? "standard output" : "--output " + path), fd_(STDOUT_FILENO) {
  if (is_standard_output(path)) {
    check_standard_output();
    return;
  }
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  is_file_ = !exists || S_ISREG(status.st_mode);
  file_.reset(::open(path.c_str(), (is_file_ ? O_RDWR | O_CREAT : O_WRONLY) | O_CLOEXEC, 0666));
  if (!file_) fail_errno(name_);
  fd_ = file_.get();
  if (is_file_) lock();
}

// Locks the file, because lines of two runs would mix. Workers of a killed run hold its lock for a
// moment longer.
void LineWriter::lock() const {
  constexpr int kTries = 200;
  constexpr useconds_t kBetweenUs = 10'000;
  for (int i = 0; ::flock(fd_, LOCK_EX | LOCK_NB) != 0; ++i) {
    if (errno != EWOULDBLOCK) return;  // a file system without locks
    if (i == kTries) fail(name_, ": another run writes it; wait for its end, or pass another file");
    ::usleep(kBetweenUs);
  }
}

void LineWriter::truncate_at(std::uint64_t offset) {
  if (!is_file_) return;
  end_ = written_ = offset;
  if (::ftruncate(fd_, static_cast<off_t>(end_)) != 0 ||
      ::lseek(fd_, static_cast<off_t>(end_), SEEK_SET) < 0) {
    fail_errno(name_);
  }
}

void LineWriter::write(std::string_view lines) {
  std::string visible;
  if (!is_file_ && ::isatty(fd_) == 1) lines = visible = visible_text(lines, Breaks::keep);
  while (!lines.empty()) {
    const std::size_t written = write_some(lines);
    const std::size_t newline = lines.substr(0, written).rfind('\n');
    if (newline != std::string_view::npos) end_ = written_ + newline + 1;
    written_ += written;
    lines.remove_prefix(written);
  }
}

std::size_t LineWriter::write_some(std::string_view text) {
  // After poll() a pipe accepts PIPE_BUF bytes, so write() does not block.
  if (!is_file_) wait_until_writable();
  const std::size_t max = is_file_ ? text.size() : std::min<std::size_t>(text.size(), PIPE_BUF);
  const ssize_t written = ::write(fd_, text.data(), max);
  if (written >= 0) return static_cast<std::size_t>(written);
  const int error = errno;
  if (error == EINTR || error == EAGAIN) return 0;
  if (error == EPIPE) throw OutputClosed(name_ + ": its reader has gone");
  // Removes the part of the line that was written. If even that fails, it stays.
  if (is_file_ && ::ftruncate(fd_, static_cast<off_t>(end_)) == 0) ::lseek(fd_, 0, SEEK_END);
  errno = error;
  fail_errno(name_);
}

void LineWriter::wait_until_writable() {
  constexpr int kLookEveryMs = 100;
  pollfd polled = {fd_, POLLOUT, 0};
  while (::poll(&polled, 1, kLookEveryMs) == 0) {
    if (give_up_ && give_up_()) throw OutputStuck(name_ + ": accepts no data");
  }
}

namespace {

bool same_file(const struct stat& one, const struct stat& other) {
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

}  // namespace

bool LineWriter::has_content() const {
  struct stat status {};
  return is_file_ && ::fstat(fd_, &status) == 0 && status.st_size > 0;
}

bool LineWriter::same_file_as(int fd) const {
  struct stat mine {
  }, other{};
  return is_file_ && ::fstat(fd_, &mine) == 0 && ::fstat(fd, &other) == 0 && same_file(mine, other);
}

bool LineWriter::same_file_as(const std::string& path) const {
  struct stat mine {
  }, other{};
  return is_file_ && ::fstat(fd_, &mine) == 0 && ::stat(path.c_str(), &other) == 0 &&
         same_file(mine, other);
}

void write_results(std::string_view text) {
  write_as_is(visible_on(STDOUT_FILENO, text));
}

void write_as_is(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EPIPE) throw OutputClosed("standard output: its reader has gone");
    if (written < 0 && errno == EBADF) check_standard_output();
    if (written < 0) fail_errno("writing the results to standard output");
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace nvllm::launcher
