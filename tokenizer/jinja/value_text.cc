// Values as text: as printed by Python, and as JSON.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "base/bounded_json.h"
#include "base/error.h"
#include "tokenizer/jinja/value.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::jinja {
namespace {

// Like Python's repr: the shortest text that parses to the same number; exponents as in "1e+16" and
// "1e-05" outside of the range of plain notation.
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

  // Call before adding this many bytes.
  void reserve(std::size_t bytes) const {
    if (bytes > style_.max_bytes - std::min(out_.size(), style_.max_bytes)) {
      fail("tojson: this takes too much time or memory");
    }
  }

  void append_string(const std::string& text) {
    reserve(text.size() * 6);
    out_ += '"';
    tokenizer::for_each_char(text, [&](char32_t c, std::string_view bytes) {
      append_char(out_, c, bytes, style_.ascii);
    });
    out_ += '"';
  }

  // Call before an item. With an indent, Python drops the separator's trailing space.
  void separate(bool first, int depth) {
    reserve(style_.item_separator.size() + style_.key_separator.size());
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
    const std::size_t spaces =
        static_cast<std::size_t>(depth) * static_cast<std::size_t>(style_.indent);
    reserve(spaces);
    out_ += '\n';
    out_.append(spaces, ' ');
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

// Builds a value during parsing.
class JsonValues final : public JsonHandler {
 public:
  void null() override { place({}); }
  void boolean(bool value) override { place(value); }
  void integer(std::int64_t value) override { place(value); }
  void unsigned_integer(std::uint64_t value) override {
    if (value > INT64_MAX) return place(static_cast<double>(value));
    place(static_cast<std::int64_t>(value));
  }
  void real(double value) override { place(value); }
  void string(std::string value) override { place(std::move(value)); }
  void begin_object() override { open_.emplace_back(); }
  void begin_list() override { open_.push_back({.is_list = true}); }
  bool key(std::string name) override {
    open_.back().key = std::move(name);
    return true;
  }
  void end() override {
    Open closed = std::move(open_.back());
    open_.pop_back();
    place(closed.is_list ? Value(std::move(closed.list)) : Value(std::move(closed.dict)));
  }

  Value take() { return std::move(root_); }

 private:
  struct Open {
    bool is_list = false;
    List list = {};
    Dict dict = {};
    std::string key = {};  // of the next value
  };

  void place(Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().is_list) {
      open_.back().list.items.push_back(std::move(value));
    } else {
      open_.back().dict.set(std::move(open_.back().key), std::move(value));
    }
  }

  Value root_;
  std::vector<Open> open_;
};

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

MarkedText to_marked_text(const Value& value) {
  if (const MarkedText* text = value.marked_text()) return *text;
  std::string text = to_text(value);
  return value.marked() ? MarkedText::outside(std::move(text)) : MarkedText{std::move(text)};
}

Value from_json(std::string_view text, std::string_view what) {
  JsonValues values;
  try {
    read_bounded_json(
        text,
        {.max_depth = Extent::kMaxDepth, .max_keys = std::size_t{1} << 21, .repeated_names = true},
        values);
    return values.take();
  } catch (const BadJson& error) {
    if (error.kind() == BadJson::Kind::syntax) {
      fail(what, ": not JSON: an error at ", line_and_column(text, error.byte()));
    }
    fail(what, ": ", error.what());
  }
}

}  // namespace nvllm::jinja
