#include "tokenizer/regex/regex.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "tokenizer/unicode/unicode.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::tokenizer {

using Op = RegexProgram::Op;

RegexMatcher::RegexMatcher(const RegexProgram& program, std::string_view text)
    : program_(program), text_(text), words_((program.marks + 63) / 64) {}

std::optional<TextSpan> RegexMatcher::next(std::size_t from) {
  while (from <= text_.size()) {
    const std::size_t end = match_at(from);
    if (end != kNoMatch && !(end == from && last_end_ == from)) {
      last_end_ = end;
      return TextSpan{from, end};
    }
    if (from == text_.size()) break;
    from += utf8_size(text_[from]);
  }
  return std::nullopt;
}

std::size_t RegexMatcher::match_at(std::size_t start) {
  const std::size_t end = run(start);
  if (end != kNoMatch) forget_marks(end);
  return end;
}

bool RegexMatcher::first_visit(std::uint32_t mark, std::size_t at) {
  const std::size_t word = (at - marks_base_) * words_ + mark / 64;
  if (word >= marks_.size()) marks_.resize((at - marks_base_ + 1) * words_);
  const std::uint64_t bit = std::uint64_t{1} << (mark % 64);
  if ((marks_[word] & bit) != 0) return false;
  marks_[word] |= bit;
  return true;
}

void RegexMatcher::forget_marks(std::size_t end) {
  if (words_ == 0 || end < marks_base_) return;
  const std::size_t used = (end - marks_base_) * words_;  // words of positions before the end
  if (used >= marks_.size()) {
    marks_.clear();
    marks_base_ = end;
    return;
  }
  // Points at the end of a match belong to the successful path; those after it have failed
  // permanently.
  const auto at = [&](std::size_t word) {
    return marks_.begin() + static_cast<std::ptrdiff_t>(word);
  };
  std::fill(at(used), at(used + words_), 0);
  if (used > marks_.size() / 2) {
    marks_.erase(marks_.begin(), at(used));
    marks_base_ = end;
  }
}

bool RegexMatcher::assertion_holds(const RegexProgram::Instruction& instruction,
                                   std::size_t at) const {
  const auto is_in = [&](std::size_t position) {
    return program_.sets[instruction.x].contains(decode_utf8(text_.data() + position).c);
  };
  switch (instruction.op) {
    case Op::kAhead: return at < text_.size() && is_in(at);
    case Op::kNotAhead: return at == text_.size() || !is_in(at);
    case Op::kBehind: return at > 0 && is_in(previous_char(text_, at));
    case Op::kNotBehind: return at == 0 || !is_in(previous_char(text_, at));
    case Op::kLineStart: return at == 0 || (text_[at - 1] == '\n' && at < text_.size());
    case Op::kLineEnd: return at == text_.size() || text_[at] == '\n';
    case Op::kTextStart: return at == 0;
    case Op::kTextEnd: return at == text_.size();
    default: return false;
  }
}

std::size_t RegexMatcher::run(std::size_t start) {
  pending_.clear();
  pending_.push_back({0, start});
  while (!pending_.empty()) {
    auto [pc, at] = pending_.back();
    pending_.pop_back();
    for (bool alive = true; alive;) {
      const RegexProgram::Instruction& instruction = program_.code[pc];
      switch (instruction.op) {
        case Op::kSet: {
          if (at == text_.size()) {
            alive = false;
            break;
          }
          const auto byte = static_cast<unsigned char>(text_[at]);
          const CharSet& set = program_.sets[instruction.x];
          if (byte < 0x80) {
            alive = set.contains_ascii(byte);
            ++at;
          } else {
            const DecodedChar next = decode_utf8(text_.data() + at);
            alive = set.contains(next.c);
            at += next.size;
          }
          ++pc;
          break;
        }
        case Op::kSplit:
          alive = first_visit(instruction.mark, at);
          if (alive) pending_.push_back({instruction.y, at});
          pc = instruction.x;
          break;
        case Op::kJump: pc = instruction.x; break;
        case Op::kMatch: return at;
        default: alive = assertion_holds(instruction, at); ++pc;
      }
    }
  }
  return kNoMatch;
}

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
