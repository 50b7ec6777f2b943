// Opening and reading the files that strangers made or users named: a model's, a cache's. Only a
// regular file is opened, so a pipe, a device or a folder in its place is an error and no wait, and
// its size is looked at before anything is read.
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

// For reading. An Error names the path, and what lies there if that is no file.
RegularFile open_regular_file(const std::string& path);

// The whole of a file. An Error if it has more than `limit` bytes: none of them is read then.
std::string read_regular_file(const std::string& path, std::uint64_t limit);
// The same; nothing if nothing has this path.
std::optional<std::string> read_regular_file_if_there(const std::string& path, std::uint64_t limit);

}  // namespace nvllm
