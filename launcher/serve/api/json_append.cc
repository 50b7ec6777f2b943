#include "launcher/serve/api/json_append.h"

#include <array>
#include <charconv>
#include <cmath>

#include "tokenizer/unicode/utf8.h"

namespace nvllm::launcher {
namespace {

bool is_plain(char c) {
  return static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\';
}

void append_escape(std::string& out, char c) {
  constexpr char kHexDigits[] = "0123456789abcdef";
  switch (c) {
    case '"': out += "\\\""; return;
    case '\\': out += "\\\\"; return;
    case '\n': out += "\\n"; return;
    case '\r': out += "\\r"; return;
    case '\t': out += "\\t"; return;
    default: break;
  }
  const auto byte = static_cast<unsigned char>(c);
  out += "\\u00";
  out += kHexDigits[byte >> 4];
  out += kHexDigits[byte & 15];
}

template <typename Number>
void append_digits(std::string& out, Number number) {
  std::array<char, 64> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number);
  out.append(text.data(), end.ptr);
}

}  // namespace

void append_json_escaped(std::string& out, std::string_view text) {
  std::size_t plain = 0;  // where the characters begin that need no escape and are not yet written
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (is_plain(text[at])) continue;
    out.append(text, plain, at - plain);
    append_escape(out, text[at]);
    plain = at + 1;
  }
  out.append(text, plain, text.size() - plain);
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  if (tokenizer::valid_utf8_prefix(text) == text.size()) {
    append_json_escaped(out, text);
  } else {
    std::string valid;
    tokenizer::append_valid_utf8(valid, text);
    append_json_escaped(out, valid);
  }
  out += '"';
}

void append_json_number(std::string& out, std::int64_t number) {
  append_digits(out, number);
}

void append_json_number(std::string& out, float number) {
  if (std::isfinite(number)) {
    append_digits(out, number);
  } else {
    out += "null";
  }
}

void append_json_ids(std::string& out, const std::vector<std::int32_t>& ids) {
  append_json_list(
      out, ids, [](std::string& to, std::int32_t id) { append_json_number(to, std::int64_t{id}); });
}

}  // namespace nvllm::launcher
