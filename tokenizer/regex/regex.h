// Regular expressions of pre-tokenizers, with Oniguruma's semantics:
//   | ( ) (?: ) (?i: ) (?i)   . ^ $ \A \z   [classes] with ranges, \s \S \w \W \d \D \p{L} \P{L}
//   \p{^L} ? * + {n} {n,} {n,m} {,m}, lazy with ?, possessive with + on a single character
//   (?=X) (?!X) (?<=X) (?<!X) where X is a single character or class
// Anything else in a pattern is rejected by name.
//
// Matching is leftmost and tries alternatives in order, like a backtracking matcher, but finding
// all matches in a text takes time proportional to pattern x text: a point (instruction, position)
// that has failed is remembered and never tried again, not even by later matches. That is sound,
// since without captures and back references a failure does not depend on how the point was
// reached.
//
// Read first: this header; then regex_compiler.cc (pattern to program) and regex.cc (the matcher).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tokenizer/unicode/unicode.h"

namespace nvllm::tokenizer {

// The set of characters that one [class], \p{...}, \s, letter or dot accepts.
class CharSet {
 public:
  // Each of these adds to the set.
  void add_range(char32_t first, char32_t last) { ranges_.push_back({first, last}); }
  void add_categories(CategoryMask mask) { categories_ |= mask; }
  void add_flags(std::uint16_t any_of) { flags_ |= any_of; }
  void add_set(CharSet set) { sets_.push_back(std::move(set)); }
  void negate() { negated_ = !negated_; }

  // Call once the set is complete, before contains().
  void finish() {
    for (char32_t c = 0; c < 128; ++c) {
      if (evaluate(c)) ascii_[c >> 6] |= std::uint64_t{1} << (c & 63);
    }
  }

  bool contains_ascii(unsigned char c) const { return (ascii_[c >> 6] >> (c & 63) & 1) != 0; }
  bool contains(char32_t c) const {
    return c < 128 ? contains_ascii(static_cast<unsigned char>(c)) : evaluate(c);
  }

 private:
  struct Range {
    char32_t first, last;
  };

  bool evaluate(char32_t c) const {
    const CharRecord& record = char_record(c);
    if (record.in(categories_) || record.has(flags_)) return !negated_;
    for (const Range& range : ranges_) {
      if (range.first <= c && c <= range.last) return !negated_;
    }
    for (const CharSet& set : sets_) {
      if (set.evaluate(c)) return !negated_;
    }
    return negated_;
  }

  std::array<std::uint64_t, 2> ascii_{};
  CategoryMask categories_ = 0;
  std::uint16_t flags_ = 0;
  bool negated_ = false;
  std::vector<Range> ranges_;
  std::vector<CharSet> sets_;
};

struct RegexProgram {
  enum class Op : std::uint8_t {
    kSet,       // consumes a character of set `x`
    kSplit,     // continues at x; if that fails, at y. `mark` numbers the splits
    kJump,      // continues at x
    kAhead,     // the next character is in set x
    kNotAhead,  // it is not, or the text ends
    kBehind,    // the previous character is in set x
    kNotBehind,
    kLineStart,  // ^
    kLineEnd,    // $
    kTextStart,  // \A
    kTextEnd,    // \z
    kMatch,
  };
  struct Instruction {
    Op op;
    std::uint32_t x = 0, y = 0;
    std::uint32_t mark = 0;
  };
  std::vector<Instruction> code;
  std::vector<CharSet> sets;
  std::uint32_t marks = 0;
};

// Throws an Error that describes an invalid or unsupported part of the pattern.
RegexProgram compile_regex(std::string_view pattern);

// A pattern that matches exactly this text.
RegexProgram literal_regex(std::string_view text);

struct TextSpan {
  std::size_t begin, end;
  bool operator==(const TextSpan&) const = default;
};

// One pass over one text. Not thread-safe; the program and the text must outlive it.
class RegexMatcher {
 public:
  RegexMatcher(const RegexProgram& program, std::string_view text);

  // The leftmost match that starts at `from` or later. `from` must not decrease between calls.
  // An empty match at the end of the previous match is skipped.
  std::optional<TextSpan> next(std::size_t from);

 private:
  struct Point {
    std::uint32_t pc;
    std::size_t at;
  };

  // The end of the match that starts at `start`; kNoMatch if there is none.
  std::size_t match_at(std::size_t start);
  std::size_t run(std::size_t start);
  bool assertion_holds(const RegexProgram::Instruction& instruction, std::size_t at) const;
  // Marks (split, at); false if it was marked already.
  bool first_visit(std::uint32_t mark, std::size_t at);
  // Discards marks that no later match, which starts at or after `end`, can use.
  void forget_marks(std::size_t end);

  static constexpr std::size_t kNoMatch = static_cast<std::size_t>(-1);

  const RegexProgram& program_;
  std::string_view text_;
  std::vector<Point> pending_;
  // words_ x 64 bits for each position from marks_base_ on.
  std::size_t words_;
  std::size_t marks_base_ = 0;
  std::vector<std::uint64_t> marks_;
  std::size_t last_end_ = kNoMatch;
};

// The patterns with which most byte-level tokenizers split text into words. The scanners in
// regex.cc give the same results as the generic matcher, about ten times faster.
enum class WordPattern {
  kNone,         // any other pattern
  kGpt2,         // GPT-2, SmolLM2: contractions, letters, digits, others, spaces
  kOneDigit,     // Qwen 2, 3: as kThreeDigits, with single digits
  kThreeDigits,  // GPT-4 (cl100k), Llama 3: words with one leading sign, up to three digits
};

// The pattern as written in tokenizer.json files, and the reverse mapping.
std::string_view pattern_text(WordPattern pattern);
WordPattern known_word_pattern(std::string_view pattern);

// The end of the match at `begin` < text.size(). These patterns match at every position.
std::size_t word_end(WordPattern pattern, std::string_view text, std::size_t begin);

}  // namespace nvllm::tokenizer
