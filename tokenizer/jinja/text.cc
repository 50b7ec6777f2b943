// Strings as sequences of characters.
#include "tokenizer/jinja/text.h"

#include <algorithm>
#include <cstring>

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

// Maps the characters of a text with append(out, c).
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
  std::vector<std::string_view> letters = split_characters(set);
  std::ranges::sort(letters);
  const auto goes = [&](std::string_view letter) {
    if (set.empty()) return is_space(decode_utf8(letter.data()).c);
    return std::ranges::binary_search(letters, letter);
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

std::size_t find_text(std::string_view text, std::string_view what, std::size_t from) {
  if (what.empty()) return from;
  // std::string::find() would take quadratic time.
  const void* const found =
      ::memmem(text.data() + from, text.size() - from, what.data(), what.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

std::size_t find_last_text(std::string_view text, std::string_view what) {
  const std::string back(text.rbegin(), text.rend()), what_back(what.rbegin(), what.rend());
  const std::size_t at = find_text(back, what_back);
  return at == std::string_view::npos ? at : text.size() - at - what.size();
}

std::vector<std::string_view> split_at(Interpreter& interpreter, std::string_view text,
                                       std::string_view separator, std::int64_t limit) {
  if (separator.empty()) fail("split: the separator is empty");
  std::vector<std::string_view> parts;
  const auto add = [&](std::string_view part) {
    interpreter.charge_values(1);
    parts.push_back(part);
  };
  while (limit-- != 0) {
    const std::size_t at = find_text(text, separator);
    if (at == std::string_view::npos) break;
    add(text.substr(0, at));
    text.remove_prefix(at + separator.size());
  }
  add(text);
  return parts;
}

std::vector<std::string_view> split_at_last(Interpreter& interpreter, std::string_view text,
                                            std::string_view separator, std::int64_t limit) {
  const std::string back(text.rbegin(), text.rend());
  const std::string separator_back(separator.rbegin(), separator.rend());
  std::vector<std::string_view> parts = split_at(interpreter, back, separator_back, limit);
  for (std::string_view& part : parts) {
    const auto begin = static_cast<std::size_t>(part.data() - back.data());
    part = text.substr(text.size() - begin - part.size(), part.size());
  }
  std::ranges::reverse(parts);
  return parts;
}

std::vector<std::string_view> split_words(Interpreter& interpreter, std::string_view text,
                                          std::int64_t limit) {
  std::vector<std::string_view> words;
  const auto add = [&](std::string_view word) {
    interpreter.charge_values(1);
    words.push_back(word);
  };
  text = stripped(text, {}, Side::left);
  while (!text.empty()) {
    if (limit-- == 0) {
      add(text);
      break;
    }
    std::size_t end = 0;
    while (end < text.size() && !is_space(decode_utf8(text.data() + end).c))
      end += decode_utf8(text.data() + end).size;
    add(text.substr(0, end));
    text = stripped(text.substr(end), {}, Side::left);
  }
  return words;
}

std::vector<std::string_view> split_lines(Interpreter& interpreter, std::string_view text,
                                          bool keep_ends) {
  std::vector<std::string_view> lines;
  const auto add = [&](std::string_view line) {
    interpreter.charge_values(1);
    lines.push_back(line);
  };
  while (!text.empty()) {
    const std::size_t end = text.find_first_of("\n\r\v\f");
    if (end == std::string_view::npos) {
      add(text);
      break;
    }
    const std::size_t after = end + (text.substr(end, 2) == "\r\n" ? 2 : 1);
    add(text.substr(0, keep_ends ? after : end));
    text.remove_prefix(after);
  }
  return lines;
}

Value as_text(const Value& value) {
  return value.string() != nullptr ? value : Value(to_marked_text(value));
}

Value part_of_text(const Value& text, std::string_view view) {
  const MarkedText& whole = *text.marked_text();
  if (view.size() == whole.text.size()) return text;
  if (whole.marks.empty() || view.empty()) return view;
  const auto begin = static_cast<std::size_t>(view.data() - whole.text.data());
  return whole.part(begin, begin + view.size());
}

Value replaced(Interpreter& interpreter, const Value& text, std::string_view what,
               const Value& with, std::int64_t limit) {
  const MarkedText& from = *text.marked_text();
  const MarkedText& to = *with.marked_text();
  const std::string_view all = from.text;
  // Each copy may add a mark of its own.
  const auto put_new = [&](MarkedText& out) {
    interpreter.charge(with.weight() * 8 + kMarkBytes);
    out.append(to);
  };
  MarkedText out;
  std::size_t done = 0;
  if (what.empty()) {
    for (const std::string_view letter : split_characters(all)) {
      if (limit != 0) put_new(out);
      if (limit > 0) --limit;
      out.append(from, done, done + letter.size());
      done += letter.size();
    }
    if (limit != 0) put_new(out);
    return out;
  }
  while (limit-- != 0) {
    const std::size_t at = find_text(all, what, done);
    if (at == std::string_view::npos) break;
    out.append(from, done, at);
    put_new(out);
    done = at + what.size();
  }
  out.append(from, done, all.size());
  return out;
}

Value joined(Interpreter& interpreter, const std::vector<Value>& texts, const Value& separator) {
  MarkedText out;
  bool first = true;
  for (const Value& text : texts) {
    interpreter.charge((separator.weight() + text.weight()) * 8);
    if (!std::exchange(first, false)) out.append(*separator.marked_text());
    out.append(*text.marked_text());
  }
  return out;
}

Value justified(Interpreter& interpreter, const Value& text, std::int64_t width, const Value& fill,
                Side side) {
  const auto length = static_cast<std::int64_t>(length_of(*text.string()));
  if (width <= length) return text;
  const auto missing = static_cast<std::size_t>(width - length);
  interpreter.reserve(missing);  // bounds the loops of an empty fill, and makes the next line exact
  interpreter.reserve(missing * fill.string()->size());
  std::size_t left = side == Side::left ? 0 : missing;
  if (side == Side::both) left = missing / 2 + (missing & static_cast<std::size_t>(width) & 1);
  MarkedText out;
  for (std::size_t i = 0; i < left; ++i) out.append(*fill.marked_text());
  out.append(*text.marked_text());
  for (std::size_t i = left; i < missing; ++i) out.append(*fill.marked_text());
  return out;
}

}  // namespace nvllm::jinja
