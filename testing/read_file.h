// Reads whole files, for tests.
#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "base/error.h"

namespace nvllm::testing {

// Throws an Error if it cannot be opened.
inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path.string(), ": cannot be opened; is it among the test's data?");
  std::ostringstream bytes;
  bytes << file.rdbuf();  // in large pieces: a byte at a time takes seconds under a sanitizer
  return std::move(bytes).str();
}

}  // namespace nvllm::testing
