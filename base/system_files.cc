#include "base/system_files.h"

#include <fstream>
#include <sstream>

#include "base/text.h"

namespace nvllm {

std::string system_text(const std::string& path) {
  // A read error only sets the stream's state; iterators would throw.
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::optional<std::uint64_t> number_after(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    std::uint64_t number = 0;
    if (words >> word && word == key && words >> number) return number;
  }
  return std::nullopt;
}

std::vector<MemoryGroup> memory_groups(const std::string& text) {
  std::vector<MemoryGroup> groups;
  std::istringstream lines(text);
  // "4:memory:/path" (version 1) or "0::/path" (version 2).
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = str(',', line.substr(first + 1, second - first - 1), ',');
    const bool version2 = controllers == ",,";
    if (!version2 && controllers.find(",memory,") == std::string::npos) continue;
    std::string path = line.substr(second + 1);
    while (!path.empty() && path.back() == '/') path.pop_back();
    if (path.empty() || path.front() == '/') groups.push_back({std::move(path), version2});
  }
  return groups;
}

}  // namespace nvllm
