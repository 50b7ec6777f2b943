#include "launcher/generate/line_writer.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace nvllm::launcher {

LineWriter::LineWriter(const std::string& path)
    : name_(path.empty() ? "standard output" : "--output " + path), fd_(STDOUT_FILENO) {
  if (path.empty()) return;
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  is_file_ = !exists || S_ISREG(status.st_mode);
  file_.reset(::open(path.c_str(), (is_file_ ? O_RDWR | O_CREAT : O_WRONLY) | O_CLOEXEC, 0666));
  if (!file_) fail_errno(name_);
  fd_ = file_.get();
  if (is_file_) lock();
}

// Two runs that write one file would spoil each other's lines. The workers of a run that was killed hold
// its lock for a moment longer.
void LineWriter::lock() const {
  constexpr int kTries = 200;
  constexpr useconds_t kBetweenUs = 10'000;
  for (int i = 0; ::flock(fd_, LOCK_EX | LOCK_NB) != 0; ++i) {
    if (errno != EWOULDBLOCK) return;  // a file system without locks
    if (i == kTries) fail(name_, ": another run writes it; wait for its end, or pass another file");
    ::usleep(kBetweenUs);
  }
}

void LineWriter::begin_at(std::uint64_t offset) {
  if (!is_file_) return;
  end_ = written_ = offset;
  if (::ftruncate(fd_, static_cast<off_t>(end_)) != 0 ||
      ::lseek(fd_, static_cast<off_t>(end_), SEEK_SET) < 0) {
    fail_errno(name_);
  }
}

void LineWriter::write(std::string_view lines) {
  while (!lines.empty()) {
    const std::size_t written = write_some(lines);
    const std::size_t newline = lines.substr(0, written).rfind('\n');
    if (newline != std::string_view::npos) end_ = written_ + newline + 1;
    written_ += written;
    lines.remove_prefix(written);
  }
}

std::size_t LineWriter::write_some(std::string_view text) {
  // After poll() a pipe has room for so many bytes: nobody has to wait in write().
  if (!is_file_) wait_for_room();
  const std::size_t most = is_file_ ? text.size() : std::min<std::size_t>(text.size(), PIPE_BUF);
  const ssize_t written = ::write(fd_, text.data(), most);
  if (written >= 0) return static_cast<std::size_t>(written);
  const int error = errno;
  if (error == EINTR || error == EAGAIN) return 0;
  if (error == EPIPE) throw OutputClosed(name_ + ": its reader has gone");
  // What has been written of the line that did not fit is no line. If even that fails, it stays.
  if (is_file_ && ::ftruncate(fd_, static_cast<off_t>(end_)) == 0) ::lseek(fd_, 0, SEEK_END);
  errno = error;
  fail_errno(name_);
}

void LineWriter::wait_for_room() {
  constexpr int kLookEveryMs = 100;
  pollfd polled = {fd_, POLLOUT, 0};
  while (::poll(&polled, 1, kLookEveryMs) == 0) {
    if (give_up_ && give_up_()) throw OutputStuck(name_ + ": takes nothing");
  }
}

bool LineWriter::same_file_as(int fd) const {
  struct stat mine {
  }, other{};
  return is_file_ && ::fstat(fd_, &mine) == 0 && ::fstat(fd, &other) == 0 &&
         mine.st_dev == other.st_dev && mine.st_ino == other.st_ino;
}

}  // namespace nvllm::launcher
