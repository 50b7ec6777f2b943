// Properties of Unicode characters and normalization, in the Unicode versions that Hugging Face
// tokenizers uses (make_unicode_tables.py generates the tables and explains the versions).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nvllm::tokenizer {

// General categories; make_unicode_tables.py has the same order.
// clang-format off
enum class Category : std::uint8_t {
  kLu, kLl, kLt, kLm, kLo,            // letters
  kMn, kMc, kMe,                      // marks
  kNd, kNl, kNo,                      // numbers
  kPc, kPd, kPs, kPe, kPi, kPf, kPo,  // punctuation
  kSm, kSc, kSk, kSo,                 // symbols
  kZs, kZl, kZp,                      // separators
  kCc, kCf, kCs, kCo, kCn,            // others
};
// clang-format on

// Sets of categories, one bit each.
using CategoryMask = std::uint32_t;
constexpr CategoryMask category_bit(Category category) {
  return 1U << static_cast<int>(category);
}
constexpr CategoryMask category_bits(Category first, Category last) {
  return (category_bit(last) << 1) - category_bit(first);
}
inline constexpr CategoryMask kLetters = category_bits(Category::kLu, Category::kLo);
inline constexpr CategoryMask kNumbers = category_bits(Category::kNd, Category::kNo);

enum CharFlag : std::uint16_t {
  kWhiteSpace = 1 << 0,
  kRegexWord = 1 << 1,     // \w of Oniguruma, used by Split
  kRustWord = 1 << 2,      // \w of Rust's regex, used by Whitespace and added tokens
  kPunctuation = 1 << 3,   // of the pre-tokenizer Punctuation
  kNumeric = 1 << 4,       // of the pre-tokenizer Digits
  kMark = 1 << 5,          // of the normalizer StripAccents
  kNfcUnstable = 1 << 6,   // NFC may change it, or combine or swap it with the preceding character
  kNfkcUnstable = 1 << 7,  // the same for NFKC
  kCanonical = 1 << 8,     // has a canonical decomposition
  kCompat = 1 << 9,        // has a canonical or compatibility decomposition
  kLower = 1 << 10,        // has another lower case
};

struct CharRecord {
  std::uint8_t category;  // Category
  std::uint8_t ccc;       // canonical combining class
  std::uint16_t flags;    // CharFlag

  bool in(CategoryMask mask) const { return (mask >> category & 1) != 0; }
  bool has(std::uint16_t any_of) const { return (flags & any_of) != 0; }
};

// c <= 0x10FFFF
const CharRecord& char_record(char32_t c);

inline bool is_white_space(char32_t c) {
  return char_record(c).has(kWhiteSpace);
}
inline bool is_letter(char32_t c) {
  return char_record(c).in(kLetters);
}

// The end of the white space that starts at `at`, and the start of that which ends at `at`.
std::size_t skip_white_space(std::string_view text, std::size_t at);
std::size_t skip_white_space_before(std::string_view text, std::size_t at);

// The full decompositions and the lower case; empty: unchanged. Hangul syllables, whose
// decomposition is arithmetic, are not in these tables.
std::u32string_view canonical_decomposition(char32_t c);
std::u32string_view compat_decomposition(char32_t c);
std::u32string_view lower_case(char32_t c);
void append_lower_case(std::string& out, char32_t c);

// The composition of two characters in NFC; 0 if there is none. Without Hangul.
char32_t composition(char32_t first, char32_t second);

// Unicode normalization forms.

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Takes linear time, except for sorting each run of combining marks (n log n).
std::string normalize_unicode(std::string_view text, NormalForm form);

}  // namespace nvllm::tokenizer
