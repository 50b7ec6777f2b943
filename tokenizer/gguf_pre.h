// What a GGUF file means by tokenizer.ggml.pre: how the byte-level tokenizers of a family cut text into words.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace nvllm::tokenizer {

// Parts as tokenizer.json writes them; static strings.
struct GgufPre {
  std::vector<const char*> names;  // of the family, in files
  const char* normalizer = "null";
  std::vector<const char*> steps;  // pre-tokenizers
  bool ignore_merges = false;
  bool add_bos = false;  // where the file does not say it
};

// An Error that lists the names that are known if this one is not, or is missing.
const GgufPre& find_gguf_pre(const std::optional<std::string>& name);

}  // namespace nvllm::tokenizer
