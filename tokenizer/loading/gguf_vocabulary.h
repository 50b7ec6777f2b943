// Creates a tokenizer from the metadata of a GGUF file, tokenizer.ggml.* and
// tokenizer.chat_template. model/checkpoint/gguf.h reads the file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/loading/tokenizer_json.h"

namespace nvllm::tokenizer {

struct GgufVocabulary {
  std::string model;  // "gpt2": byte-level; "llama" and, with merges, "gemma4": SentencePiece
  std::optional<std::string> pre;  // how text is split into words; gpt2 only
  std::vector<std::string> tokens;
  std::vector<double> scores;             // llama only: the highest merges first
  std::vector<std::int64_t> token_types;  // GgufTokenType; empty: all are normal
  std::vector<std::string> merges;        // "left right", in order; llama has them rarely
  std::optional<std::int64_t> bos_id, eos_id, unk_id, pad_id;
  std::optional<bool> add_bos, add_eos, add_space_prefix;
  std::optional<std::string> chat_template;
  std::optional<std::string> tool_use_template;  // replaces it for requests with tools
};

enum class GgufTokenType : std::int64_t {
  normal = 1,
  unknown = 2,
  control = 3,       // special: <|im_start|>
  user_defined = 4,  // matched in text as a whole, but not special: <think>
  unused = 5,
  byte = 6,
};

// The tokenizer yields the same ids as the tokenizer.json from which the file was converted. Throws
// an Error for an unknown model or pre-tokenizer, and for an inconsistent vocabulary.
LoadedTokenizer make_tokenizer(const GgufVocabulary& vocabulary);

}  // namespace nvllm::tokenizer
