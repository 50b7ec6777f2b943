// MemoryFile: bytes as a file without a folder, for fuzz targets, which open many per second.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <span>
#include <string>

#include "base/unique_fd.h"

namespace nvllm::model {

class MemoryFile {
 public:
  explicit MemoryFile(std::span<const std::byte> bytes) : fd_(::memfd_create("file", MFD_CLOEXEC)) {
    // Abort instead of an Error, which a fuzz target would take for a rejection.
    if (!fd_ || ::write(fd_.get(), bytes.data(), bytes.size()) != std::ssize(bytes)) std::abort();
  }

  // Valid as long as this object.
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_.get()); }

 private:
  UniqueFd fd_;
};

}  // namespace nvllm::model
