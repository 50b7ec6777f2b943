// The normalizer changes text before it is split into words.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/marked_text.h"
#include "tokenizer/regex/regex.h"
#include "tokenizer/unicode/unicode.h"

namespace nvllm::tokenizer {

// Replaces matches of a pattern, in text (Normalizer) or in tokens (Decoder).
class Replacement {
 public:
  static Replacement of_literal(std::string_view pattern, std::string content);
  static Replacement of_regex(std::string_view pattern, std::string content);

  std::string apply(std::string_view text) const;
  // Maximum ratio of the lengths after and before the replacement.
  std::size_t growth() const;
  // Whether it replaces single characters, so that it can be applied piecewise.
  bool is_of_one_char() const;

 private:
  Replacement(std::string literal, RegexProgram program, std::string content)
      : literal_(std::move(literal)), program_(std::move(program)), content_(std::move(content)) {}

  std::string literal_;  // empty: the program is used
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

// Limits of a tokenizer.json, so that encoding and decoding take time and memory in proportion to
// the text. Models have up to ten steps, replace a byte by three, and prepend three.
inline constexpr std::size_t kMaxSteps = 64;           // of each component: time per byte of text
inline constexpr std::size_t kMaxReplaceGrowth = 16;   // of all replacements in sequence
inline constexpr std::size_t kMaxPrependedBytes = 64;  // per piece, after later replacements

// By how much all replacements together lengthen a text; an Error if that exceeds
// kMaxReplaceGrowth.
class ReplaceGrowth {
 public:
  // owner: of the steps, "normalizer".
  void add(const char* owner, const Replacement& replacement);
  std::size_t times() const { return times_; }

 private:
  std::size_t times_ = 1;
};

struct NormalizedText {
  std::string text;
  // Whether its first character comes from the first character of the original text. Used by the
  // Metaspace pre-tokenizer.
  bool keeps_start = true;
};

class Normalizer {
 public:
  // An Error if all steps together exceed the limits above.
  void add(NormalizerStep step);
  bool empty() const { return steps_.empty(); }
  NormalizedText apply(std::string_view text) const;
  // The marks of `normalized`, which apply() created from the text. If a step's result differs
  // between the whole text and its separate parts (it joins characters across a boundary),
  // everything is marked.
  Marks marks_of(const MarkedText& text, const NormalizedText& normalized) const;

 private:
  std::vector<NormalizerStep> steps_;
  ReplaceGrowth growth_;
  std::size_t prepended_ = 0;  // bytes, after later steps
};

}  // namespace nvllm::tokenizer
