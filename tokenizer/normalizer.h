// The normalizer changes text before it is cut into words.
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
  // How many times as long as a text its replacement may be.
  std::size_t growth() const;
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

// The limits of what a tokenizer.json may ask for, so that encoding and decoding take time and
// memory in proportion to the text. Models have up to ten steps, replace a byte by three, prepend
// three.
inline constexpr std::size_t kMaxSteps = 64;           // of each component: time per byte of text
inline constexpr std::size_t kMaxReplaceGrowth = 16;   // of all replacements, one after the other
inline constexpr std::size_t kMaxPrependedBytes = 64;  // to each piece, after later replacements

// How many times as long all replacements together make a text; an Error if that is more than
// kMaxReplaceGrowth.
class ReplaceGrowth {
 public:
  // owner: whose steps they are, "normalizer".
  void add(const char* owner, const Replacement& replacement);
  std::size_t times() const { return times_; }

 private:
  std::size_t times_ = 1;
};

struct NormalizedText {
  std::string text;
  // Whether its first character comes from the first character of the original text. The Metaspace
  // pre-tokenizer needs to know.
  bool keeps_start = true;
};

class Normalizer {
 public:
  // An Error if all steps together are more than the limits above allow.
  void add(NormalizerStep step);
  bool empty() const { return steps_.empty(); }
  NormalizedText apply(std::string_view text) const;
  // The marks of `normalized`, which apply() made of the text. Where a step would give something
  // else for the parts of the text than for all of it (it joins characters across their boundary),
  // all is marked.
  Marks marks_of(const MarkedText& text, const NormalizedText& normalized) const;

 private:
  std::vector<NormalizerStep> steps_;
  ReplaceGrowth growth_;
  std::size_t prepended_ = 0;  // bytes, with what later steps make of them
};

}  // namespace nvllm::tokenizer
