// A temporary folder of files, removed at the end of the test.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "model/checkpoint/checkpoint.h"

namespace nvllm::model {

class TestFolder {
 public:
  TestFolder() : path_(std::filesystem::temp_directory_path() / "checkpoint_XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) fail_errno(path_);
  }
  TestFolder(TestFolder&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  TestFolder& operator=(TestFolder&&) = delete;
  ~TestFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  std::string path(const std::string& name = "") const {
    return name.empty() ? path_ : path_ + "/" + name;
  }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
  }

 private:
  std::string path_;
};

// The error message of opening the folder, or a file in it, with DIR instead of the folder's path.
inline std::string error_of(const TestFolder& folder, const std::string& name = "") {
  try {
    (void)open_checkpoint(folder.path(name));
  } catch (const Error& error) {
    std::string text = error.what();
    for (std::size_t at; (at = text.find(folder.path())) != std::string::npos;) {
      text.replace(at, folder.path().size(), "DIR");
    }
    return text;
  }
  return "no error";
}

}  // namespace nvllm::model
