// Regular expressions of pre-tokenizers, as Oniguruma reads them:
//   | ( ) (?: ) (?i: ) (?i)   . ^ $ \A \z   [classes] with ranges, \s \S \w \W \d \D \p{L} \P{L}
//   \p{^L} ? * + {n} {n,} {n,m} {,m}, lazy with ?, possessive with + on a single character
//   (?=X) (?!X) (?<=X) (?<!X) where X is a single character or class
// What else is in a pattern is refused by name.
//
// Matching is leftmost, alternatives in order, like a backtracking matcher, but in time
// proportional to pattern × text for a walk over a whole text: a point (instruction, position) that
// failed once is remembered and not tried again, also not by later matches (without captures and
// back references its failure does not depend on how it was reached).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tokenizer/char_set.h"

namespace nvllm::tokenizer {

struct RegexProgram {
  enum class Op : std::uint8_t {
    kSet,       // a character of set `x`
    kSplit,     // go on at x; if that fails, at y. `mark` numbers the splits
    kJump,      // x
    kAhead,     // the next character is in set x
    kNotAhead,  // it is not, or the text ends
    kBehind,    // the same for the character before
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

// Throws an Error about what in the pattern is wrong or not known.
RegexProgram compile_regex(std::string_view pattern);

// A pattern that matches exactly this text.
RegexProgram literal_regex(std::string_view text);

struct TextSpan {
  std::size_t begin, end;
  bool operator==(const TextSpan&) const = default;
};

// One walk over one text. Not thread-safe; the program and the text must outlive it.
class RegexMatcher {
 public:
  RegexMatcher(const RegexProgram& program, std::string_view text);

  // The leftmost match that starts at `from` or later. `from` must not decrease between calls.
  // An empty match at the end of the one before is passed over.
  std::optional<TextSpan> next(std::size_t from);

 private:
  struct Point {
    std::uint32_t pc;
    std::size_t at;
  };

  // The end of the match that starts at `start`, kNoMatch if there is none.
  std::size_t match_at(std::size_t start);
  std::size_t run(std::size_t start);
  bool assertion_holds(const RegexProgram::Instruction& instruction, std::size_t at) const;
  // Marks (split, at); false if it was marked before.
  bool first_visit(std::uint32_t mark, std::size_t at);
  // Forgets what no later match, which starts at `end` or after, may use.
  void forget_marks(std::size_t end);

  static constexpr std::size_t kNoMatch = static_cast<std::size_t>(-1);

  const RegexProgram& program_;
  std::string_view text_;
  std::vector<Point> pending_;
  // words_ × 64 bits for each position from marks_base_ on.
  std::size_t words_;
  std::size_t marks_base_ = 0;
  std::vector<std::uint64_t> marks_;
  std::size_t last_end_ = kNoMatch;
};

}  // namespace nvllm::tokenizer
