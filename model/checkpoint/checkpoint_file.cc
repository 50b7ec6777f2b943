#include "model/checkpoint/checkpoint_file.h"

#include <unistd.h>

#include "base/error.h"
#include "base/regular_file.h"

namespace nvllm::model {

namespace {

constexpr std::uint64_t kMaxConfigBytes = 16 << 20;

}  // namespace

bool is_there(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

CheckpointFile open_file(const std::string& path) {
  RegularFile file = open_regular_file(path);
  return CheckpointFile(path, std::move(file.fd), file.size);
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
  return read_regular_file(path, limit);
}

std::string read_config_json(const std::string& path) {
  return read_text(path, kMaxConfigBytes);
}

}  // namespace nvllm::model
