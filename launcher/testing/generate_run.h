// Shared by tests of `generate`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace nvllm::testing {

using Json = nlohmann::json;

// tests/data/golden-models/NAME
std::string golden_model(const std::string& name);

// The arguments of a run of a golden model on the CPU, plus `more`.
std::vector<std::string> generate(const std::string& model, const std::vector<std::string>& more);

std::string file_text(const std::string& path);

// Parses JSON lines; every line must be complete.
std::vector<Json> json_lines(const std::string& text);

// A folder that exists for the lifetime of the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();

  std::string path(const std::string& name) const { return path_ + '/' + name; }
  // Makes a file, and returns its path.
  std::string file(const std::string& name, const std::string& text) const;

 private:
  std::string path_;
};

}  // namespace nvllm::testing
