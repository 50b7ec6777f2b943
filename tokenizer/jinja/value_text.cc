// Values as text: as Python prints them, and as JSON.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "tokenizer/jinja/value.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::jinja {
namespace {

// As Python's repr: the shortest text that reads back the same, "1e+16" and "1e-05" outside of the
// range that it writes out.
std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char digits[40];
  const auto end =
      std::to_chars(digits, digits + sizeof digits, value, std::chars_format::scientific).ptr;
  const std::string_view text(digits, static_cast<std::size_t>(end - digits));
  const std::size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), end, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(text);
  char plain[64];
  const auto plain_end =
      std::to_chars(plain, plain + sizeof plain, value, std::chars_format::fixed).ptr;
  std::string out(plain, plain_end);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

constexpr char kHexDigits[] = "0123456789abcdef";

std::string quoted(const std::string& text) {
  const bool use_double =
      text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
  const char quote = use_double ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += "\\x";
      out += kHexDigits[byte >> 4];
      out += kHexDigits[byte & 15];
    } else {
      out += c;
    }
  }
  return out + quote;
}

void append_repr(std::string& out, const Value& value) {
  const char* separator = "";  // before the next item
  if (const std::string* text = value.string()) {
    out += quoted(*text);
  } else if (const List* list = value.list()) {
    out += list->tuple ? '(' : '[';
    for (const Value& item : list->items) {
      out += std::exchange(separator, ", ");
      append_repr(out, item);
    }
    if (list->tuple && list->items.size() == 1) out += ',';
    out += list->tuple ? ')' : ']';
  } else if (const Dict* dict = value.dict()) {
    out += '{';
    for (const auto& [key, item] : dict->items()) {
      out += std::exchange(separator, ", ");
      append_repr(out, key);
      out += ": ";
      append_repr(out, item);
    }
    out += '}';
  } else if (value.undefined()) {
    out += "Undefined";
  } else {
    out += to_text(value);
  }
}

void append_hex4(std::string& out, unsigned code) {
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out += kHexDigits[code >> shift & 15];
}

// A character of a JSON string; `ascii`: escaped unless it is in ASCII.
void append_char(std::string& out, char32_t c, std::string_view bytes, bool ascii) {
  switch (c) {
    case '"': out += "\\\""; return;
    case '\\': out += "\\\\"; return;
    case '\n': out += "\\n"; return;
    case '\r': out += "\\r"; return;
    case '\t': out += "\\t"; return;
    case '\b': out += "\\b"; return;
    case '\f': out += "\\f"; return;
    default: break;
  }
  const auto code = static_cast<unsigned>(c);
  if (code < 0x20) return append_hex4(out, code);
  if (code < 0x7f || !ascii) {
    out += bytes;
  } else if (code < 0x10000) {
    append_hex4(out, code);
  } else {
    append_hex4(out, 0xD800 + ((code - 0x10000) >> 10));
    append_hex4(out, 0xDC00 + ((code - 0x10000) & 0x3FF));
  }
}

class JsonText {
 public:
  explicit JsonText(const JsonStyle& style) : style_(style) {}

  void append(const Value& value, int depth) {
    if (const std::string* text = value.string()) {
      append_string(*text);
    } else if (const List* list = value.list()) {
      append_list(*list, depth);
    } else if (const Dict* dict = value.dict()) {
      append_dict(*dict, depth);
    } else {
      out_ += scalar(value);
    }
  }

  std::string take() { return std::move(out_); }

 private:
  static std::string scalar(const Value& value) {
    if (value.none()) return "null";
    if (const bool* truth = value.get<bool>()) return *truth ? "true" : "false";
    if (value.get<std::int64_t>() != nullptr) return to_text(value);
    if (const double* real = value.get<double>()) {
      if (std::isnan(*real)) return "NaN";
      if (std::isinf(*real)) return *real < 0 ? "-Infinity" : "Infinity";
      return to_text(value);
    }
    fail("tojson: JSON has no ", value.type_name());
  }

  void append_string(const std::string& text) {
    out_ += '"';
    tokenizer::for_each_char(text, [&](char32_t c, std::string_view bytes) {
      append_char(out_, c, bytes, style_.ascii);
    });
    out_ += '"';
  }

  // Before an item. With an indent, Python drops the separator's trailing space.
  void separate(bool first, int depth) {
    if (style_.indent < 0) {
      if (!first) out_ += style_.item_separator;
      return;
    }
    if (!first) {
      const std::size_t end = style_.item_separator.find_last_not_of(' ');
      out_ += style_.item_separator.substr(0, end == std::string::npos ? 0 : end + 1);
    }
    new_line(depth);
  }
  void new_line(int depth) {
    if (style_.indent < 0) return;
    out_ += '\n';
    out_.append(static_cast<std::size_t>(depth) * static_cast<std::size_t>(style_.indent), ' ');
  }

  void append_list(const List& list, int depth) {
    if (list.items.empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      separate(i == 0, depth + 1);
      append(list.items[i], depth + 1);
    }
    new_line(depth);
    out_ += ']';
  }

  void append_dict(const Dict& dict, int depth) {
    if (dict.size() == 0) {
      out_ += "{}";
      return;
    }
    std::vector<std::pair<std::string, const Value*>> items;
    for (const auto& [key, value] : dict.items()) {
      items.emplace_back(key.string() != nullptr ? *key.string() : scalar(key), &value);
    }
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
    }
    out_ += '{';
    for (std::size_t i = 0; i < items.size(); ++i) {
      separate(i == 0, depth + 1);
      append_string(items[i].first);
      out_ += style_.key_separator;
      append(*items[i].second, depth + 1);
    }
    new_line(depth);
    out_ += '}';
  }

  const JsonStyle& style_;
  std::string out_;
};

Value from(const nlohmann::ordered_json& json) {
  if (json.is_null()) return {};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_unsigned() && json.get<std::uint64_t>() > INT64_MAX) return json.get<double>();
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    List list;
    for (const auto& item : json) list.items.push_back(from(item));
    return list;
  }
  Dict dict;
  for (const auto& [key, item] : json.items()) dict.set(key, from(item));
  return dict;
}

}  // namespace

std::string to_text(const Value& value) {
  if (const std::string* text = value.string()) return *text;
  if (value.undefined()) return {};
  if (value.none()) return "None";
  if (const bool* truth = value.get<bool>()) return *truth ? "True" : "False";
  if (const std::int64_t* whole = value.get<std::int64_t>()) return std::to_string(*whole);
  if (const double* real = value.get<double>()) return float_text(*real);
  if (value.name_space() != nullptr) return "<Namespace>";
  if (const Callable* function = value.callable()) return "<" + function->name + ">";
  return to_repr(value);
}

std::string to_repr(const Value& value) {
  std::string out;
  append_repr(out, value);
  return out;
}

std::string to_json(const Value& value, const JsonStyle& style) {
  JsonText text(style);
  text.append(value, 0);
  return text.take();
}

Value from_json(std::string_view text, std::string_view what) {
  // Counted first: the library's parser goes down without a limit.
  int depth = 0;
  bool inside = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (inside) {
      if (c == '\\') ++i;
      if (c == '"') inside = false;
    } else if (c == '"') {
      inside = true;
    } else if (c == '{' || c == '[') {
      if (++depth > Extent::kMaxDepth)
        fail(what, ": nested more than ", Extent::kMaxDepth, " deep");
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  try {
    return from(parse_ordered_json(text));
  } catch (const nlohmann::json::exception& error) {
    fail(what, ": not JSON: ", error.what());
  }
}

}  // namespace nvllm::jinja
