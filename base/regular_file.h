// Opens and reads files that are untrusted or were named by users: a model's, a cache's. Only
// regular files are opened, so that a pipe, device or folder is an error and does not block; the
// size is checked before anything is read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/unique_fd.h"

namespace nvllm {

struct RegularFile {
  UniqueFd fd;
  std::uint64_t size = 0;
};

// Opens for reading. An Error names the path, and the kind of anything but a regular file.
RegularFile open_regular_file(const std::string& path);

// Reads a whole file. If it has more than `limit` bytes, throws an Error without reading.
std::string read_regular_file(const std::string& path, std::uint64_t limit);
// The same; nullopt if the path does not exist.
std::optional<std::string> read_regular_file_if_there(const std::string& path, std::uint64_t limit);

}  // namespace nvllm
