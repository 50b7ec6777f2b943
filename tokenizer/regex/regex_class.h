// Parses single characters and classes of a regular expression; regex_compiler.cc does the rest.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/error.h"
#include "tokenizer/regex/regex.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::tokenizer {

// A cursor over a pattern.
class PatternReader {
 public:
  explicit PatternReader(std::string_view pattern) : pattern_(pattern) {}

  bool done() const { return at_ == pattern_.size(); }
  char peek() const { return done() ? '\0' : pattern_[at_]; }
  bool accept(std::string_view text) {
    if (!pattern_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  char32_t take_char();
  // {n}, {n,}, {n,m}, {,m}; max -1: no limit. Anything else after { is not consumed: it is literal.
  bool accept_interval(int& min, int& max);
  // The text before `end`; also consumes `end`.
  std::string_view take_until(char end);

  [[noreturn]] void fail_at(std::string_view what) const {
    fail("at byte ", at_, ": ", what, " is not supported");
  }

 private:
  std::string_view pattern_;
  std::size_t at_ = 0;
};

struct ParsedClass {
  CharSet set;                  // finished
  char32_t folded_literal = 0;  // the lower-case letter, if it is one under (?i)
};

// One character, escape, dot or [class].
ParsedClass parse_class(PatternReader& in, bool ignore_case);

}  // namespace nvllm::tokenizer
