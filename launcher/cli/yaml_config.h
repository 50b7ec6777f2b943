// The part of YAML that configuration files are written in, as those of vLLM are:
//
//   # a comment
//   model: Qwen/Qwen3-8B
//   max-model-len: 32k
//   enforce_eager: true
//   stop: ["###", "\n\n"]          # or one "- item" in each line below the key
//
// One option in each line; no keys below keys, no texts of several lines, no anchors or tags.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace nvllm::launcher {

struct YamlEntry {
  std::string key;
  std::size_t at = 0;    // where the key begins in the text
  nlohmann::json value;  // null: there is none
  // As it stands in the file, if it is one without quotes: "off", "007".
  std::string plain = "";
};

// Throws a UsageError with the line. what: the file, for messages.
std::vector<YamlEntry> parse_yaml(std::string_view text, const std::string& what);

}  // namespace nvllm::launcher
