// MemoryFile: bytes as a file that lies in no folder, for fuzz targets, which open many a second.
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
    // No Error, which a fuzz target would take for a refusal.
    if (!fd_ || ::write(fd_.get(), bytes.data(), bytes.size()) != std::ssize(bytes)) std::abort();
  }

  // As long as this lives.
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_.get()); }

 private:
  UniqueFd fd_;
};

}  // namespace nvllm::model
