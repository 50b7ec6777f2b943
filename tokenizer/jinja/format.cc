// Formatting values into texts.
#include <algorithm>
#include <cstdio>
#include <ctime>

#include "base/error.h"
#include "tokenizer/jinja/text.h"

namespace nvllm::jinja {
namespace {

// One conversion of a % format.
struct Conversion {
  std::string flags;
  int width = 0;
  int precision = -1;
  char kind = 's';
};

std::string padded(std::string text, const Conversion& how) {
  const std::size_t length = length_of(text);
  const auto width = static_cast<std::size_t>(how.width);
  if (length >= width) return text;
  if (how.flags.find('-') != std::string::npos) return text + std::string(width - length, ' ');
  return std::string(width - length, ' ') + text;
}

std::string formatted_number(const Conversion& how, const Value& value) {
  char buffer[512];
  const auto real = value.number();
  if (!real) fail("'%", how.kind, "' takes a number, not ", value.type_name());
  if (how.kind == 'd' || how.kind == 'i' || how.kind == 'x' || how.kind == 'X' || how.kind == 'o') {
    const auto whole = value.integer();
    if (!whole && !(*real > -9e18 && *real < 9e18))
      fail("'%", how.kind, "': the number is too large");
    const std::string format = "%" + how.flags + "*ll" + how.kind;
    std::snprintf(buffer, sizeof buffer, format.c_str(), how.width,
                  whole ? static_cast<long long>(*whole) : static_cast<long long>(*real));
  } else {
    const std::string format = "%" + how.flags + "*.*" + how.kind;
    std::snprintf(buffer, sizeof buffer, format.c_str(), how.width,
                  how.precision < 0 ? 6 : how.precision, *real);
  }
  return buffer;
}

std::string converted(const Conversion& how, const Value& value) {
  if (how.kind == 's' || how.kind == 'r') {
    std::string text = how.kind == 's' ? to_text(value) : to_repr(value);
    if (how.precision >= 0) text = characters(text, 0, static_cast<std::size_t>(how.precision));
    return padded(std::move(text), how);
  }
  if (how.kind == 'c' && value.string() != nullptr) return padded(*value.string(), how);
  if (std::string_view("dixXoeEfFgG").find(how.kind) == std::string_view::npos) {
    fail("'%", how.kind, "' is no conversion");
  }
  return formatted_number(how, value);
}

// Appends the converted value, which is marked entirely if any text in it is: a width or a
// precision may have changed it.
void put(Interpreter& interpreter, MarkedText& out, const Conversion& how, const Value& value) {
  interpreter.charge(value.weight() * 8 + kMarkBytes);
  std::string text = converted(how, value);
  interpreter.reserve(text.size());
  out.append(value.marked() ? MarkedText::outside(std::move(text)) : MarkedText{std::move(text)});
}

// Parses the number at format[i] and advances i; 0 if there are no digits.
int take_number(std::string_view format, std::size_t& i) {
  int number = 0;
  for (; i < format.size() && format[i] >= '0' && format[i] <= '9'; ++i) {
    number = number * 10 + (format[i] - '0');
    if (number > 300) fail("a format's width or precision is more than 300");
  }
  return number;
}

void take_width_and_precision(std::string_view format, std::size_t& i, Conversion& how) {
  how.width = take_number(format, i);
  if (i < format.size() && format[i] == '.') how.precision = take_number(format, ++i);
}

// The value of {field}: by number, by name, or the next argument if it is empty. nullptr: there is
// none.
const Value* field_value(std::string_view field, const Arguments& arguments, std::size_t& next) {
  if (field.find_first_not_of("0123456789") != std::string_view::npos) {
    const auto named = arguments.find(field);
    return named == arguments.named.end() ? nullptr : &named->second;
  }
  std::size_t at = 0;
  const std::size_t index =
      field.empty() ? next++ : static_cast<std::size_t>(take_number(field, at));
  return index < arguments.positional.size() ? &arguments.positional[index] : nullptr;
}

}  // namespace

Value percent_format(Interpreter& interpreter, const Value& text, const Value& values) {
  const MarkedText& source = *text.marked_text();
  const std::string_view format = source.text;
  const List* list = values.list() != nullptr && values.list()->tuple ? values.list() : nullptr;
  std::size_t next = 0;
  const auto take = [&]() -> const Value& {
    const std::size_t have = list != nullptr ? list->items.size() : 1;
    if (next >= have) fail("'%' has more conversions than values");
    return list != nullptr ? list->items[next++] : (++next, values);
  };
  MarkedText out;
  for (std::size_t i = 0; i < format.size();) {
    if (format[i] != '%') {
      const std::size_t end = std::min(format.find('%', i), format.size());
      out.append(source, i, end);
      i = end;
      continue;
    }
    if (format.substr(i, 2) == "%%") {
      out.append(source, i, i + 1);
      i += 2;
      continue;
    }
    Conversion how;
    for (++i;
         i < format.size() && std::string_view("-+ 0#").find(format[i]) != std::string_view::npos;
         ++i) {
      if (how.flags.find(format[i]) == std::string::npos) how.flags += format[i];
    }
    take_width_and_precision(format, i, how);
    if (i == format.size()) fail("'%' stands at the end of a format");
    how.kind = format[i++];
    put(interpreter, out, how, take());
  }
  if (list != nullptr && next != list->items.size()) fail("'%' has fewer conversions than values");
  return out;
}

Value brace_format(Interpreter& interpreter, const Value& text, const Arguments& arguments) {
  const MarkedText& source = *text.marked_text();
  const std::string_view format = source.text;
  MarkedText out;
  std::size_t automatic = 0;
  for (std::size_t i = 0; i < format.size(); ++i) {
    const char c = format[i];
    if (c != '{' && c != '}') {
      const std::size_t end = std::min(format.find_first_of("{}", i), format.size());
      out.append(source, i, end);
      i = end - 1;
      continue;
    }
    if (i + 1 < format.size() && format[i + 1] == c) {
      out.append(source, i, i + 1);
      ++i;
      continue;
    }
    const std::size_t close = format.find('}', i);
    if (c == '}' || close == std::string_view::npos) fail("format: a single '", c, "'");
    std::string_view field = format.substr(i + 1, close - i - 1);
    std::string_view style;
    if (const std::size_t colon = field.find(':'); colon != std::string_view::npos) {
      style = field.substr(colon + 1);
      field = field.substr(0, colon);
    }
    interpreter.charge_values(arguments.named.size());
    const Value* value = field_value(field, arguments, automatic);
    if (value == nullptr) fail("format: nothing was given for {", field, "}");
    Conversion how;
    std::size_t at = 0;
    if (at < style.size() && style[at] == '0') how.flags = "0";
    take_width_and_precision(style, at, how);
    if (at < style.size()) how.kind = style[at++];
    if (at < style.size() || (how.kind == 's' && value->string() == nullptr && !style.empty())) {
      fail("format: '", style, "' is not supported");
    }
    put(interpreter, out, how, *value);
    i = close;
  }
  return out;
}

std::string time_text(const std::string& format) {
  if (format.empty()) return {};
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char buffer[1024];
  const std::size_t size = std::strftime(buffer, sizeof buffer, format.c_str(), &local);
  if (size == 0) fail("strftime_now: '", format, "' gives nothing, or more than 1023 bytes");
  return std::string(buffer, size);
}

}  // namespace nvllm::jinja
