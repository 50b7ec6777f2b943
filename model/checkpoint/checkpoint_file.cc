#include "model/checkpoint/checkpoint_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

namespace nvllm::model {

namespace {

constexpr std::uint64_t kMaxConfigBytes = 16 << 20;

}  // namespace

bool is_there(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

CheckpointFile open_file(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not wait for its writer.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) fail_errno(path);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail_errno(path);
  if (!S_ISREG(status.st_mode)) fail(path, ": expected a file, found something else");
  return CheckpointFile(path, std::move(fd), static_cast<std::uint64_t>(status.st_size));
}

void read_at(const CheckpointFile& file, std::uint64_t offset, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t got = ::pread(file.fd(), to.data(), to.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(file.path(), ": reading ", to.size(), " bytes at ", offset);
    if (got == 0) {
      fail(file.path(), ": ends at byte ", offset, " while it is read; it had ", file.size());
    }
    offset += static_cast<std::uint64_t>(got);
    to = to.subspan(static_cast<std::size_t>(got));
  }
}

std::string read_text(const std::string& path, std::uint64_t limit) {
  const CheckpointFile file = open_file(path);
  if (file.size() > limit) {
    fail(path, ": expected at most ", limit, " bytes, found ", file.size());
  }
  std::string text(file.size(), '\0');
  read_at(file, 0, std::as_writable_bytes(std::span(text)));
  return text;
}

std::string read_config_json(const std::string& path) {
  return read_text(path, kMaxConfigBytes);
}

}  // namespace nvllm::model
