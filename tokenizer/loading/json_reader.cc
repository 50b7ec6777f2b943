#include "tokenizer/loading/json_reader.h"

#include <charconv>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::tokenizer {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

// The position of the next " or \ from `at` on; the size if there is none. Eight bytes at a time.
std::size_t find_string_end(std::string_view text, std::size_t at) {
  constexpr std::uint64_t kOnes = 0x0101010101010101, kHighs = 0x8080808080808080;
  const auto zero_bytes = [](std::uint64_t word) { return (word - kOnes) & ~word & kHighs; };
  for (; at + 8 <= text.size(); at += 8) {
    std::uint64_t word;
    std::memcpy(&word, text.data() + at, 8);
    const std::uint64_t hits = zero_bytes(word ^ kOnes * '"') | zero_bytes(word ^ kOnes * '\\');
    if (hits != 0) return at + static_cast<std::size_t>(__builtin_ctzll(hits)) / 8;
  }
  while (at < text.size() && text[at] != '"' && text[at] != '\\') ++at;
  return at;
}

}  // namespace

JsonReader::JsonReader(std::string_view text) : text_(text) {
  const std::size_t valid = valid_utf8_prefix(text);
  if (valid != text.size()) fail("byte ", valid, ": not UTF-8");
}

void JsonReader::fail_expected(std::string_view what) const {
  if (at_ >= text_.size())
    fail("byte ", text_.size(), ": the text ends where ", what, " should be");
  fail("byte ", at_, ": expected ", what);
}

void JsonReader::skip_space() {
  while (at_ < text_.size() && is_space(text_[at_])) ++at_;
}

char JsonReader::next_char() {
  skip_space();
  return at_ < text_.size() ? text_[at_] : '\0';
}

void JsonReader::expect(char c, std::string_view what) {
  if (next_char() != c) fail_expected(what);
  ++at_;
}

char JsonReader::peek() {
  const char c = next_char();
  if (c == '\0') fail_expected("a value");
  return c;
}

void JsonReader::begin_object() {
  expect('{', "an object");
  first_ = true;
}

bool JsonReader::next_key(std::string_view& key) {
  const bool first = std::exchange(first_, false);
  if (next_char() == '}') {
    ++at_;
    return false;
  }
  if (!first) expect(',', "a comma or }");
  key = read_string();
  expect(':', "a colon");
  return true;
}

void JsonReader::begin_array() {
  expect('[', "an array");
  first_ = true;
}

bool JsonReader::next_item() {
  const bool first = std::exchange(first_, false);
  if (next_char() == ']') {
    ++at_;
    return false;
  }
  if (!first) expect(',', "a comma or ]");
  return true;
}

std::string_view JsonReader::read_string() {
  expect('"', "a string");
  const std::size_t from = at_;
  at_ = find_string_end(text_, at_);
  if (at_ == text_.size()) fail_expected("the end of a string");
  if (text_[at_] == '\\') return unescape(from);
  return text_.substr(from, at_++ - from);
}

std::string_view JsonReader::unescape(std::size_t from) {
  scratch_.assign(text_.substr(from, at_ - from));
  while (at_ < text_.size() && text_[at_] == '\\') {
    ++at_;
    append_utf8(scratch_, read_escaped_char());
    const std::size_t end = find_string_end(text_, at_);
    scratch_.append(text_.substr(at_, end - at_));
    at_ = end;
  }
  if (at_ == text_.size()) fail_expected("the end of a string");
  ++at_;
  return scratch_;
}

char32_t JsonReader::read_escaped_char() {
  if (at_ == text_.size()) fail_expected("an escaped character");
  switch (text_[at_++]) {
    case '"': return '"';
    case '\\': return '\\';
    case '/': return '/';
    case 'b': return '\b';
    case 'f': return '\f';
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case 'u': break;
    default: --at_; fail_expected("one of \"\\/bfnrtu after a backslash");
  }
  const std::uint32_t unit = read_hex4();
  if (unit < 0xD800 || unit > 0xDFFF) return unit;
  if (unit > 0xDBFF || text_.substr(at_, 2) != "\\u") fail_expected("a pair of surrogates");
  at_ += 2;
  const std::uint32_t low = read_hex4();
  if (low < 0xDC00 || low > 0xDFFF) fail_expected("the second of a pair of surrogates before");
  return 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
}

std::uint32_t JsonReader::read_hex4() {
  const std::string_view digits = text_.substr(at_, 4);
  std::uint32_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (error != std::errc{} || end != digits.data() + 4) fail_expected("four hexadecimal digits");
  at_ += 4;
  return value;
}

std::uint32_t JsonReader::read_uint32() {
  skip_space();
  std::uint32_t value = 0;
  const char* const end = text_.data() + text_.size();
  const auto [next, error] = std::from_chars(text_.data() + at_, end, value);
  const bool fraction = next != end && (*next == '.' || *next == 'e' || *next == 'E');
  if (error != std::errc{} || fraction) fail_expected("a whole number from 0 to 4294967295");
  at_ = static_cast<std::size_t>(next - text_.data());
  return value;
}

bool JsonReader::read_bool() {
  skip_space();
  for (const bool value : {true, false}) {
    const std::string_view name = value ? "true" : "false";
    if (!text_.substr(at_).starts_with(name)) continue;
    at_ += name.size();
    return value;
  }
  fail_expected("true or false");
}

void JsonReader::skip_string() {
  ++at_;
  for (;;) {
    at_ = find_string_end(text_, at_);
    if (at_ == text_.size()) fail_expected("the end of a string");
    if (text_[at_++] == '"') return;
    if (at_ < text_.size()) ++at_;
  }
}

std::string_view JsonReader::raw_value() {
  skip_space();
  const std::size_t from = at_;
  std::string open;  // the expected closing brackets
  do {
    const char c = peek();
    if (c == '"') {
      skip_string();
    } else if (c == '{' || c == '[') {
      open += c == '{' ? '}' : ']';
      ++at_;
    } else if (!open.empty() && c == open.back()) {
      open.pop_back();
      ++at_;
    } else if (c == ']' || c == '}') {
      fail_expected("a value");
    } else if (!open.empty() && (c == ',' || c == ':')) {
      ++at_;
    } else {
      const std::size_t word = at_;
      while (at_ < text_.size() && std::strchr(" \n\r\t,:]}[{\"", text_[at_]) == nullptr) ++at_;
      if (at_ == word) fail_expected("a value");
    }
  } while (!open.empty());
  return text_.substr(from, at_ - from);
}

void JsonReader::finish() {
  skip_space();
  if (at_ != text_.size()) fail_expected("the end of the text");
}

}  // namespace nvllm::tokenizer
