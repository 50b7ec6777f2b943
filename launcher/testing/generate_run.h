// What tests of `generate` have in common.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace nvllm::testing {

using Json = nlohmann::json;

// tests/data/golden-models/NAME
std::string golden_model(const std::string& name);

// The words of a run of a golden model on the CPU, with `more`.
std::vector<std::string> generate(const std::string& model, const std::vector<std::string>& more);

std::string file_text(const std::string& path);

// Every line must be whole, and JSON.
std::vector<Json> json_lines(const std::string& text);

// A folder that is there for as long as the object lives.
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
