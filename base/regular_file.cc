#include "base/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace nvllm {
namespace {

RegularFile checked(UniqueFd fd, const std::string& path) {
  if (!fd) fail_errno(path);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail_errno(path);
  if (!S_ISREG(status.st_mode)) fail(path, ": expected a file, found something else");
  return {.fd = std::move(fd), .size = static_cast<std::uint64_t>(status.st_size)};
}

UniqueFd opened(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not wait for its writer. O_NOCTTY: a terminal must not become
  // the controlling one.
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
}

std::string read_all(const RegularFile& file, const std::string& path, std::uint64_t limit) {
  if (file.size > limit) fail(path, ": expected at most ", limit, " bytes, found ", file.size);
  std::string text(file.size, '\0');
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t got = ::read(file.fd.get(), text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(path);
    if (got == 0) fail(path, ": it became shorter while it was read; try again");
    done += static_cast<std::size_t>(got);
  }
  return text;
}

}  // namespace

RegularFile open_regular_file(const std::string& path) {
  return checked(opened(path), path);
}

std::string read_regular_file(const std::string& path, std::uint64_t limit) {
  return read_all(open_regular_file(path), path, limit);
}

std::optional<std::string> read_regular_file_if_there(const std::string& path,
                                                      std::uint64_t limit) {
  UniqueFd fd = opened(path);
  if (!fd && (errno == ENOENT || errno == ENOTDIR)) return std::nullopt;
  return read_all(checked(std::move(fd), path), path, limit);
}

}  // namespace nvllm
