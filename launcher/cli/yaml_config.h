// The subset of YAML that is supported in configuration files, like those of vLLM:
//
//   # a comment
//   model: Qwen/Qwen3-8B
//   max-model-len: 32k
//   enforce_eager: true
//   stop: ["###", "\n\n"]          # or one "- item" in each line below the key
//
// One option per line; no nested keys, multi-line texts, anchors or tags.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace nvllm::launcher {

struct YamlEntry {
  std::string key;
  std::size_t at = 0;    // offset of the key in the text
  nlohmann::json value;  // null: no value
  // The value as written, if it has no quotes: "off", "007".
  std::string plain = "";
};

// Throws a UsageError with the line. what: names the file in messages.
std::vector<YamlEntry> parse_yaml(std::string_view text, const std::string& what);

}  // namespace nvllm::launcher
