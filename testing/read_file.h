// Reads whole files, for tests.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/error.h"

namespace nvllm::testing {

// Throws an Error if it cannot be opened.
inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path.string(), ": cannot be opened; is it among the test's data?");
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace nvllm::testing
