#include "launcher/testing/generate_run.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "base/json_text.h"

namespace nvllm::testing {

std::string golden_model(const std::string& name) {
  return "tests/data/golden-models/" + name;
}

std::vector<std::string> generate(const std::string& model, const std::vector<std::string>& more) {
  std::vector<std::string> words = {"generate", "--model", golden_model(model),
                                    "--device", "cpu",     "--kv-cache-memory-bytes",
                                    "16M"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<Json> json_lines(const std::string& text) {
  std::vector<Json> lines;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    lines.push_back(parse_json(text.substr(begin, end - begin)));
  }
  if (begin != text.size()) fail("the last line is not whole: ", text.substr(begin));
  return lines;
}

TemporaryFolder::TemporaryFolder()
    : path_(std::filesystem::temp_directory_path() / "generate_XXXXXX") {
  if (::mkdtemp(path_.data()) == nullptr) fail_errno("mkdtemp ", path_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

std::string TemporaryFolder::file(const std::string& name, const std::string& text) const {
  std::ofstream(path(name), std::ios::binary) << text;
  return path(name);
}

}  // namespace nvllm::testing
