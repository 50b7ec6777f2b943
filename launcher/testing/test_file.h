// A file that exists for the lifetime of the object.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/error.h"

namespace nvllm::launcher {

class TestFile {
 public:
  explicit TestFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() / "lines_XXXXXX") {
    const int fd = ::mkstemp(path_.data());
    if (fd < 0) fail_errno("mkstemp ", path_);
    ::close(fd);
    write(text);
  }
  TestFile(const TestFile&) = delete;
  TestFile& operator=(const TestFile&) = delete;
  ~TestFile() { ::unlink(path_.c_str()); }

  const std::string& path() const { return path_; }
  std::string text() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::string& text) const {
    std::ofstream(path_, std::ios::trunc | std::ios::binary) << text;
  }

 private:
  std::string path_;
};

}  // namespace nvllm::launcher
