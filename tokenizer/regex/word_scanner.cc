#include <array>
#include <cstdint>

#include "tokenizer/regex/regex.h"
#include "tokenizer/unicode/unicode.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::tokenizer {
namespace {

constexpr std::string_view kGpt2Text =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kOneDigitText =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kThreeDigitsText =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The four kinds of characters that these patterns distinguish.
enum class Kind : std::uint8_t { kLetter, kNumber, kSpace, kOther };

Kind kind_of(char32_t c) {
  const CharRecord& record = char_record(c);
  if (record.in(kLetters)) return Kind::kLetter;
  if (record.in(kNumbers)) return Kind::kNumber;
  return record.has(kWhiteSpace) ? Kind::kSpace : Kind::kOther;
}

constexpr std::array<Kind, 128> make_ascii_kinds() {
  std::array<Kind, 128> kinds{};
  for (std::size_t c = 0; c < 128; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    kinds[c] = letter                            ? Kind::kLetter
               : c >= '0' && c <= '9'            ? Kind::kNumber
               : c == ' ' || (c >= 9 && c <= 13) ? Kind::kSpace
                                                 : Kind::kOther;
  }
  return kinds;
}
constexpr std::array<Kind, 128> kAsciiKinds = make_ascii_kinds();

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool done(std::size_t at) const { return at >= text_.size(); }
  char byte(std::size_t at) const { return at < text_.size() ? text_[at] : '\0'; }

  // at < size
  Kind kind(std::size_t at, std::size_t& size) const {
    const auto lead = static_cast<unsigned char>(text_[at]);
    if (lead < 0x80) {
      size = 1;
      return kAsciiKinds[lead];
    }
    const DecodedChar next = decode_utf8(text_.data() + at);
    size = next.size;
    return kind_of(next.c);
  }
  bool is(Kind wanted, std::size_t at) const {
    std::size_t size;
    return !done(at) && kind(at, size) == wanted;
  }
  // The end of a run of one kind, of at most `limit` characters.
  std::size_t run_end(Kind wanted, std::size_t at,
                      std::size_t limit = static_cast<std::size_t>(-1)) const {
    for (std::size_t size; limit > 0 && !done(at) && kind(at, size) == wanted; --limit) at += size;
    return at;
  }

  // The end of 's 't 're 've 'm 'll 'd at `at`; 0 if there is none of them. If case is ignored,
  // U+017F counts as s.
  std::size_t contraction_end(std::size_t at, bool ignore_case) const {
    const auto letter = [&](std::size_t i) {
      const char c = byte(i);
      return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
    };
    const char first = letter(at + 1), second = letter(at + 2);
    switch (first) {
      case 's':
      case 't':
      case 'm':
      case 'd': return at + 2;
      case 'r':
      case 'v': return second == 'e' ? at + 3 : 0;
      case 'l': return second == 'l' ? at + 3 : 0;
      default: break;
    }
    return ignore_case && text_.substr(at + 1).starts_with("\xC5\xBF") ? at + 3 : 0;
  }

  // \s+(?!\S)|\s+ for the run of spaces from `begin` to `end`: the last space is left for the
  // following word, unless it is the only one.
  std::size_t spaces_end(std::size_t begin, std::size_t end) const {
    if (done(end)) return end;
    const std::size_t last = previous_char(text_, end);
    return last > begin ? last : end;
  }

  std::size_t newlines_end(std::size_t at) const {
    while (byte(at) == '\r' || byte(at) == '\n') ++at;
    return at;
  }
  // The end of the last \r or \n in the range; `begin` if there is none.
  std::size_t last_newline_end(std::size_t begin, std::size_t end) const {
    while (end > begin && text_[end - 1] != '\r' && text_[end - 1] != '\n') --end;
    return end;
  }

 private:
  std::string_view text_;
};

std::size_t gpt2_end(const Scanner& scan, std::size_t begin) {
  if (scan.byte(begin) == '\'') {
    if (const std::size_t end = scan.contraction_end(begin, false)) return end;
  }
  const std::size_t word = begin + (scan.byte(begin) == ' ' ? 1 : 0);
  std::size_t size;
  if (!scan.done(word)) {
    const Kind kind = scan.kind(word, size);
    if (kind != Kind::kSpace) return scan.run_end(kind, word + size);
  }
  return scan.spaces_end(begin, scan.run_end(Kind::kSpace, begin));
}

std::size_t cl100k_end(const Scanner& scan, std::size_t begin, std::size_t digits) {
  const char first = scan.byte(begin);
  if (first == '\'') {
    if (const std::size_t end = scan.contraction_end(begin, true)) return end;
  }
  std::size_t size;
  const Kind kind = scan.kind(begin, size);
  const std::size_t second = begin + size;
  if (kind == Kind::kLetter) return scan.run_end(Kind::kLetter, second);
  if (kind == Kind::kNumber) return scan.run_end(Kind::kNumber, second, digits - 1);
  if (first != '\r' && first != '\n' && scan.is(Kind::kLetter, second)) {
    return scan.run_end(Kind::kLetter, second);
  }
  const std::size_t sign = first == ' ' ? second : begin;
  if (scan.is(Kind::kOther, sign)) return scan.newlines_end(scan.run_end(Kind::kOther, sign));
  const std::size_t spaces = scan.run_end(Kind::kSpace, second);
  const std::size_t newline = scan.last_newline_end(begin, spaces);
  return newline > begin ? newline : scan.spaces_end(begin, spaces);
}

}  // namespace

std::string_view pattern_text(WordPattern pattern) {
  switch (pattern) {
    case WordPattern::kNone: break;
    case WordPattern::kGpt2: return kGpt2Text;
    case WordPattern::kOneDigit: return kOneDigitText;
    case WordPattern::kThreeDigits: return kThreeDigitsText;
  }
  return {};
}

WordPattern known_word_pattern(std::string_view pattern) {
  for (const WordPattern known :
       {WordPattern::kGpt2, WordPattern::kOneDigit, WordPattern::kThreeDigits}) {
    if (pattern == pattern_text(known)) return known;
  }
  return WordPattern::kNone;
}

std::size_t word_end(WordPattern pattern, std::string_view text, std::size_t begin) {
  const Scanner scan(text);
  switch (pattern) {
    case WordPattern::kNone: break;
    case WordPattern::kGpt2: return gpt2_end(scan, begin);
    case WordPattern::kOneDigit: return cl100k_end(scan, begin, 1);
    case WordPattern::kThreeDigits: return cl100k_end(scan, begin, 3);
  }
  return text.size();
}

}  // namespace nvllm::tokenizer
