// Strings as sequences of characters.
#include "tokenizer/jinja/text.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizer/unicode/unicode.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::jinja {
namespace {

using tokenizer::append_lower_case;
using tokenizer::append_utf8;
using tokenizer::decode_utf8;
using tokenizer::for_each_char;

char32_t upper_of(char32_t c) {
  if (c >= 'a' && c <= 'z') return c - 32;
  if (c < 0x80) return c;
  if (c == 0xB5) return 0x39C;
  if (c == 0xFF) return 0x178;
  if (c >= 0xE0 && c <= 0xFE && c != 0xF7) return c - 32;
  const bool pairs_of_even = (c >= 0x100 && c <= 0x137 && c != 0x131) ||
                             (c >= 0x14A && c <= 0x177) || (c >= 0x460 && c <= 0x481) ||
                             (c >= 0x48A && c <= 0x4BF) || (c >= 0x4D0 && c <= 0x52F) ||
                             (c >= 0x1E00 && c <= 0x1E95) || (c >= 0x1EA0 && c <= 0x1EFF);
  if (pairs_of_even) return c % 2 == 1 ? c - 1 : c;
  const bool pairs_of_odd =
      (c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17E) || (c >= 0x4C1 && c <= 0x4CE);
  if (pairs_of_odd) return c % 2 == 0 ? c - 1 : c;
  if (c == 0x3C2) return 0x3A3;
  if (c >= 0x3B1 && c <= 0x3C9) return c - 32;
  if (c >= 0x430 && c <= 0x44F) return c - 32;
  if (c >= 0x450 && c <= 0x45F) return c - 80;
  return c;
}

void append_upper(std::string& out, char32_t c) {
  if (c == 0xDF) {
    out += "SS";
  } else {
    append_utf8(out, upper_of(c));
  }
}

// A text whose characters append(out, c) makes of those of another.
template <typename Append>
std::string mapped(std::string_view text, const Append& append) {
  std::string out;
  for_each_char(text, [&](char32_t c, std::string_view) { append(out, c); });
  return out;
}

}  // namespace

std::size_t length_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return !tokenizer::is_utf8_continuation(c); }));
}

std::vector<std::string_view> split_characters(std::string_view text) {
  std::vector<std::string_view> letters;
  for_each_char(text, [&](char32_t, std::string_view letter) { letters.push_back(letter); });
  return letters;
}

std::string_view characters(std::string_view text, std::size_t from, std::size_t count) {
  const auto skip = [&](std::size_t at, std::size_t letters) {
    for (; letters > 0 && at < text.size(); --letters) at += decode_utf8(text.data() + at).size;
    return at;
  };
  const std::size_t begin = skip(0, from);
  return text.substr(begin, skip(begin, count) - begin);
}

bool is_space(char32_t c) {
  return (c >= 0x1C && c <= 0x1F) || tokenizer::is_white_space(c);
}

std::string_view stripped(std::string_view text, std::string_view set, Side side) {
  const std::vector<std::string_view> letters = split_characters(set);
  const auto goes = [&](std::string_view letter) {
    if (set.empty()) return is_space(decode_utf8(letter.data()).c);
    return std::find(letters.begin(), letters.end(), letter) != letters.end();
  };
  while (side != Side::right && !text.empty()) {
    const std::size_t size = decode_utf8(text.data()).size;
    if (!goes(text.substr(0, size))) break;
    text.remove_prefix(size);
  }
  while (side != Side::left && !text.empty()) {
    const std::size_t at = tokenizer::previous_char(text, text.size());
    if (!goes(text.substr(at))) break;
    text.remove_suffix(text.size() - at);
  }
  return text;
}

std::string lower(std::string_view text) {
  return mapped(text, append_lower_case);
}

std::string upper(std::string_view text) {
  return mapped(text, append_upper);
}

std::string swapped_case(std::string_view text) {
  return mapped(text, [](std::string& out, char32_t c) {
    tokenizer::lower_case(c).empty() ? append_upper(out, c) : append_lower_case(out, c);
  });
}

std::string capitalized(std::string_view text) {
  return mapped(text, [](std::string& out, char32_t c) {
    out.empty() ? append_upper(out, c) : append_lower_case(out, c);
  });
}

std::string titled(std::string_view text) {
  bool inside = false;
  return mapped(text, [&](std::string& out, char32_t c) {
    inside ? append_lower_case(out, c) : append_upper(out, c);
    inside = tokenizer::is_letter(c);
  });
}

bool is_lower(std::string_view text) {
  return lower(text) == text && upper(text) != text;
}

bool is_upper(std::string_view text) {
  return upper(text) == text && lower(text) != text;
}

std::optional<std::int64_t> small_index(std::string_view text) {
  if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != text.npos) {
    return std::nullopt;
  }
  return std::stoll(std::string(text));
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator,
                                       std::int64_t limit) {
  if (separator.empty()) fail("split: the separator is empty");
  std::vector<std::string_view> parts;
  while (limit-- != 0) {
    const std::size_t at = text.find(separator);
    if (at == std::string_view::npos) break;
    parts.push_back(text.substr(0, at));
    text.remove_prefix(at + separator.size());
  }
  parts.push_back(text);
  return parts;
}

std::vector<std::string_view> split_at_last(std::string_view text, std::string_view separator,
                                            std::int64_t limit) {
  if (separator.empty()) fail("rsplit: the separator is empty");
  std::vector<std::string_view> parts;
  while (limit-- != 0) {
    const std::size_t at = text.rfind(separator);
    if (at == std::string_view::npos) break;
    parts.push_back(text.substr(at + separator.size()));
    text = text.substr(0, at);
  }
  parts.push_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_words(std::string_view text, std::int64_t limit) {
  std::vector<std::string_view> words;
  text = stripped(text, {}, Side::left);
  while (!text.empty()) {
    if (limit-- == 0) {
      words.push_back(text);
      break;
    }
    std::size_t end = 0;
    while (end < text.size() && !is_space(decode_utf8(text.data() + end).c))
      end += decode_utf8(text.data() + end).size;
    words.push_back(text.substr(0, end));
    text = stripped(text.substr(end), {}, Side::left);
  }
  return words;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = text.find_first_of("\n\r\v\f");
    if (end == std::string_view::npos) {
      lines.push_back(text);
      break;
    }
    const std::size_t after = end + (text.substr(end, 2) == "\r\n" ? 2 : 1);
    lines.push_back(text.substr(0, keep_ends ? after : end));
    text.remove_prefix(after);
  }
  return lines;
}

std::string replaced(Interpreter& interpreter, std::string_view text, std::string_view what,
                     std::string_view with, std::int64_t limit) {
  std::string out;
  if (what.empty()) {
    for (const std::string_view letter : split_characters(text)) {
      interpreter.reserve(with.size() + letter.size());
      if (limit != 0) out += with;
      if (limit > 0) --limit;
      out += letter;
    }
    if (limit != 0) out += with;
    return out;
  }
  interpreter.reserve(text.size());
  while (limit-- != 0) {
    const std::size_t at = text.find(what);
    if (at == std::string_view::npos) break;
    interpreter.reserve(with.size());
    out += text.substr(0, at);
    out += with;
    text.remove_prefix(at + what.size());
  }
  return out += text;
}

}  // namespace nvllm::jinja
