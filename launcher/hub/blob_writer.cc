#include "launcher/hub/blob_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "base/error.h"

namespace nvllm::launcher {

BlobWriter::BlobWriter(HubFile file, std::string path, const std::function<void()>& keep_going)
    : file_(std::move(file)), path_(std::move(path)), incomplete_(path_ + ".incomplete") {
  fd_.reset(::open(incomplete_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  struct stat status {};
  if (!fd_ || ::fstat(fd_.get(), &status) != 0) fail_errno(incomplete_);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (file_.sha256.empty() || size > file_.size) {
    if (::ftruncate(fd_.get(), 0) != 0) fail_errno(incomplete_);
    return;
  }
  std::vector<char> buffer(std::size_t{4} << 20);
  while (written_ < size) {
    keep_going();
    const ssize_t count = ::read(fd_.get(), buffer.data(), buffer.size());
    if (count < 0) fail_errno(incomplete_);
    if (count == 0) break;
    hash_.add({buffer.data(), static_cast<std::size_t>(count)});
    written_ += static_cast<std::uint64_t>(count);
  }
  size_at_start_ = written_;
}

void BlobWriter::put(std::uint64_t offset, std::string bytes) {
  const std::lock_guard lock(mutex_);
  ahead_[offset] = std::move(bytes);
  while (!ahead_.empty() && ahead_.begin()->first == written_) {
    append(ahead_.begin()->second);
    ahead_.erase(ahead_.begin());
  }
}

void BlobWriter::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count =
        ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(written_));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      fail(
          incomplete_, ": ", errno_text(count < 0 ? errno : ENOSPC),
          "; make room, or set HF_HUB_CACHE to a folder on another disk. What has arrived is kept");
    }
    const auto done = static_cast<std::size_t>(count);
    hash_.add(bytes.substr(0, done));
    written_ += done;
    bytes.remove_prefix(done);
  }
}

void BlobWriter::finish() {
  const std::lock_guard lock(mutex_);
  if (written_ != file_.size) {
    fail(incomplete_, ": holds ", written_, " of ", file_.size, " bytes; pull the model again");
  }
  if (const std::string hash = hash_.finish(); !file_.sha256.empty() && hash != file_.sha256) {
    ::unlink(incomplete_.c_str());
    fail("file ", file_.name, ": arrived with SHA-256 ", hash, ", not ", file_.sha256,
         " as the hub says; nothing of it was kept. Pull the model again; if that repeats, ",
         "something between the hub and this machine changes files");
  }
  fd_.reset();
  if (::rename(incomplete_.c_str(), path_.c_str()) != 0) fail_errno(path_);
}

}  // namespace nvllm::launcher
