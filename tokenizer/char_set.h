// A set of characters: what one [class], \p{…}, \s, letter or dot of a regular expression accepts.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tokenizer/unicode.h"

namespace nvllm::tokenizer {

class CharSet {
 public:
  // Each of these enlarges the set.
  void add_range(char32_t first, char32_t last) { ranges_.push_back({first, last}); }
  void add_categories(CategoryMask mask) { categories_ |= mask; }
  void add_flags(std::uint16_t any_of) { flags_ |= any_of; }
  void add_without_flag(std::uint16_t flag) { without_flags_.push_back(flag); }
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
    for (const std::uint16_t flag : without_flags_) {
      if (!record.has(flag)) return !negated_;
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
  std::vector<std::uint16_t> without_flags_;
  std::vector<CharSet> sets_;
};

}  // namespace nvllm::tokenizer
