// The normalizer changes text before it is cut into words.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/regex/regex.h"
#include "tokenizer/unicode/unicode.h"

namespace nvllm::tokenizer {

// Replaces matches of a pattern, in text (Normalizer) or in tokens (Decoder).
class Replacement {
 public:
  static Replacement of_literal(std::string_view pattern, std::string content);
  static Replacement of_regex(std::string_view pattern, std::string content);

  std::string apply(std::string_view text) const;
  // Whether it replaces single characters, so that it may be applied to a text piece by piece.
  bool is_of_one_char() const;

 private:
  Replacement(std::string literal, RegexProgram program, std::string content)
      : literal_(std::move(literal)), program_(std::move(program)), content_(std::move(content)) {}

  std::string literal_;  // empty: the program says it
  RegexProgram program_;
  std::string content_;
};

struct Lowercase {};
struct StripAccents {};
struct Prepend {
  std::string text;
};
struct StripSpace {
  bool left, right;
};
using NormalizerStep =
    std::variant<NormalForm, Lowercase, StripAccents, Prepend, StripSpace, Replacement>;

struct NormalizedText {
  std::string text;
  // Whether its first character comes from the first character of the original text. The Metaspace
  // pre-tokenizer needs to know.
  bool keeps_start = true;
};

class Normalizer {
 public:
  void add(NormalizerStep step) { steps_.push_back(std::move(step)); }
  bool empty() const { return steps_.empty(); }
  NormalizedText apply(std::string_view text) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace nvllm::tokenizer
