#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "tokenizer/jinja/functions.h"
#include "tokenizer/jinja/text.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::jinja {
namespace {

[[noreturn]] void fail_types(std::string_view operation, const Value& a, const Value& b) {
  if (a.undefined()) fail_undefined(a);
  if (b.undefined()) fail_undefined(b);
  fail("'", operation, "' is not defined between ", a.type_name(), " and ", b.type_name());
}

Value repeated(Interpreter& interpreter, const Value& what, std::int64_t times) {
  times = std::max<std::int64_t>(times, 0);
  const auto reserve = [&](std::size_t bytes_each) {
    std::size_t bytes = 0;
    const bool overflow =
        __builtin_mul_overflow(bytes_each, static_cast<std::size_t>(times), &bytes);
    interpreter.reserve(overflow ? SIZE_MAX / 2 : bytes);
  };
  if (const MarkedText* text = what.marked_text()) {
    const std::size_t marks = text->marks.ranges().size();
    reserve(text->text.size() + marks * kMarkBytes);
    MarkedText out;
    for (std::int64_t i = 0; i < times && !text->text.empty(); ++i) out.append(*text);
    return out;
  }
  const List& list = *what.list();
  reserve(list.items.size() * sizeof(Value));
  List out{.items = {}, .tuple = list.tuple};
  for (std::int64_t i = 0; i < times && !list.items.empty(); ++i) {
    out.items.insert(out.items.end(), list.items.begin(), list.items.end());
  }
  return out;
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Value whole_power(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1 && __builtin_mul_overflow(result, base, &result))
      fail("a power is too large");
    if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) fail("a power is too large");
  }
  return result;
}

// nullopt: the operands are not integers, or the result is not one.
std::optional<Value> whole_arithmetic(std::string_view operation, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflow = false;
  if (operation == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (operation == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (operation == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (operation == "//" || operation == "%") {
    if (b == 0) fail("division by zero");
    if (b == -1) {
      overflow = operation == "//" && __builtin_sub_overflow(std::int64_t{0}, a, &result);
    } else {
      result = floor_divide(a, b);
      if (operation == "%") result = a - result * b;
    }
  } else if (operation == "**" && b >= 0) {
    return whole_power(a, b);
  } else {
    return std::nullopt;
  }
  if (overflow) fail("'", operation, "' gives a number that is too large");
  return result;
}

Value real_arithmetic(std::string_view operation, double a, double b) {
  if (operation == "+") return a + b;
  if (operation == "-") return a - b;
  if (operation == "*") return a * b;
  if (operation == "**") return std::pow(a, b);
  if (b == 0) fail("division by zero");
  if (operation == "/") return a / b;
  if (operation == "//") return std::floor(a / b);
  return a - std::floor(a / b) * b;
}

// A Python index: from the end if it is negative. nullopt: out of range.
std::optional<std::size_t> index_in(std::int64_t index, std::size_t size) {
  const auto count = static_cast<std::int64_t>(size);
  if (index < 0) index += count;
  if (index < 0 || index >= count) return std::nullopt;
  return static_cast<std::size_t>(index);
}

// The character at an index, searched from the nearer end, which the index's sign tells.
std::optional<Value> character_of(Interpreter& interpreter, const Value& value,
                                  std::int64_t index) {
  const std::string_view text = *value.string();
  std::size_t at = 0;
  if (index >= 0) {
    for (; index > 0 && at < text.size(); --index) at += tokenizer::utf8_size(text[at]);
    interpreter.reserve(at);
    if (at >= text.size()) return std::nullopt;
  } else {
    for (at = text.size(); index < 0 && at > 0; ++index) at = tokenizer::previous_char(text, at);
    interpreter.reserve(text.size() - at);
    if (index < 0) return std::nullopt;
  }
  return part_of_text(value, text.substr(at, tokenizer::utf8_size(text[at])));
}

std::optional<Value> item_of(Interpreter& interpreter, const Value& value, const Value& key) {
  if (const Dict* dict = value.dict()) {
    charge_find(interpreter, key);
    const Value* found = dict->find(key);
    return found == nullptr ? std::nullopt : std::optional(*found);
  }
  const auto index = key.integer();
  if (!index) return std::nullopt;
  if (const List* list = value.list()) {
    const auto at = index_in(*index, list->items.size());
    return at ? std::optional(list->items[*at]) : std::nullopt;
  }
  if (value.string() != nullptr) return character_of(interpreter, value, *index);
  return std::nullopt;
}

std::optional<Value> attribute_of(const Value& value, const std::string& name) {
  if (Namespace* space = value.name_space()) {
    const Value* found = space->values.get(name);
    return found == nullptr ? std::nullopt : std::optional(*found);
  }
  return method_of(value, name);
}

// [from, to) with a step, clipped as in Python.
struct Span {
  std::int64_t from, to, step;
};

Span span_of(const Value& from, const Value& to, const Value& step, std::size_t size) {
  const auto count = static_cast<std::int64_t>(size);
  const auto number = [](const Value& value, std::int64_t fallback) {
    if (value.none()) return fallback;
    const auto whole = value.integer();
    if (!whole) fail("a slice takes integers, not ", value.type_name());
    return *whole;
  };
  Span span{0, 0, number(step, 1)};
  if (span.step == 0) fail("a slice's step is 0");
  const bool back = span.step < 0;
  const auto clipped = [&](std::int64_t index) {
    if (index < 0) index = index < -count ? (back ? -1 : 0) : index + count;
    return std::clamp<std::int64_t>(index, back ? -1 : 0, back ? count - 1 : count);
  };
  span.from = from.none() ? (back ? count - 1 : 0) : clipped(number(from, 0));
  span.to = to.none() ? (back ? -1 : count) : clipped(number(to, 0));
  return span;
}

template <typename Take>
void walk(const Span& span, const Take& take) {
  std::int64_t i = span.from;
  while (span.step > 0 ? i < span.to : i > span.to) {
    take(static_cast<std::size_t>(i));
    if (__builtin_add_overflow(i, span.step, &i)) return;
  }
}

}  // namespace

void fail_undefined(const Value& value) {
  fail(value.get<Undefined>()->name, " is undefined");
}

Value made_anew(Interpreter& interpreter, Value result, bool marked) {
  if (result.string() == nullptr) return result;
  interpreter.charge(result.weight() * 8);
  return marked ? from_outside(result) : result;
}

Value arithmetic(Interpreter& interpreter, std::string_view operation, const Value& a,
                 const Value& b) {
  const auto whole_a = a.integer();
  const auto whole_b = b.integer();
  if (whole_a && whole_b) {
    if (auto result = whole_arithmetic(operation, *whole_a, *whole_b)) return *std::move(result);
  }
  const auto x = a.number(), y = b.number();
  if (x && y) return real_arithmetic(operation, *x, *y);
  if (operation == "+") {
    if (a.string() != nullptr && b.string() != nullptr) {
      interpreter.charge((a.weight() + b.weight()) * 8);
      MarkedText sum = *a.marked_text();
      sum.append(*b.marked_text());
      return sum;
    }
    if (a.list() != nullptr && b.list() != nullptr && a.list()->tuple == b.list()->tuple) {
      List sum{.items = a.list()->items, .tuple = a.list()->tuple};
      sum.items.insert(sum.items.end(), b.list()->items.begin(), b.list()->items.end());
      interpreter.reserve(sum.items.size() * sizeof(Value));
      return sum;
    }
  }
  if (operation == "*") {
    if ((a.string() != nullptr || a.list() != nullptr) && whole_b)
      return repeated(interpreter, a, *whole_b);
    if ((b.string() != nullptr || b.list() != nullptr) && whole_a)
      return repeated(interpreter, b, *whole_a);
  }
  if (operation == "%" && a.string() != nullptr) {
    interpreter.charge(a.weight() * 8);
    return percent_format(interpreter, a, b);
  }
  fail_types(operation, a, b);
}

Value negated(const Value& value) {
  if (const auto whole = value.integer()) {
    if (*whole == INT64_MIN) fail("'-' gives a number that is too large");
    return -*whole;
  }
  if (const double* real = value.get<double>()) return -*real;
  if (value.undefined()) fail_undefined(value);
  fail("'-' is not defined for ", value.type_name());
}

bool contains(Interpreter& interpreter, const Value& container, const Value& item) {
  if (const std::string* text = container.string()) {
    if (item.undefined()) fail_undefined(item);
    if (item.string() == nullptr) fail("'in' a string takes a string, not ", item.type_name());
    interpreter.charge((container.weight() + item.weight()) * 8);
    return find_text(*text, *item.string()) != std::string::npos;
  }
  if (const List* list = container.list()) {
    interpreter.charge((container.weight() + static_cast<std::int64_t>(list->items.size())) * 8);
    return std::any_of(list->items.begin(), list->items.end(),
                       [&](const Value& have) { return equal(have, item); });
  }
  if (const Dict* dict = container.dict()) {
    charge_find(interpreter, item);
    return dict->find(item) != nullptr;
  }
  if (container.undefined()) return false;
  fail("'in' is not defined for ", container.type_name());
}

void charge_find(Interpreter& interpreter, const Value& key) {
  // Looking up a text takes logarithmic time; other keys are compared with all keys of their kind.
  constexpr std::int64_t kFind = 16, kCompareAll = 4 * Dict::kMaxOtherKeys;
  interpreter.charge(key.weight() + (key.string() != nullptr ? kFind : kCompareAll));
}

void charge_comparison(Interpreter& interpreter, const Value& a, const Value& b) {
  const bool texts = a.string() != nullptr || b.string() != nullptr;
  interpreter.charge(std::min(a.weight(), b.weight()) * (texts ? 1 : 32));
}

Value attribute(Interpreter& interpreter, const Value& value, const std::string& name) {
  if (value.undefined()) fail_undefined(value);
  if (auto found = attribute_of(value, name)) return *std::move(found);
  if (const Dict* dict = value.dict()) {
    if (const Value* found = dict->get(name)) return *found;
  } else if (const auto index = small_index(name)) {
    if (auto found = item_of(interpreter, value, *index)) return *std::move(found);
  }
  return Undefined{str("'", value.type_name(), " object' has no attribute '", name, "', which")};
}

Value subscript(Interpreter& interpreter, const Value& value, const Value& key) {
  if (value.undefined()) fail_undefined(value);
  if (key.undefined()) fail_undefined(key);
  if (auto found = item_of(interpreter, value, key)) return *std::move(found);
  if (const std::string* name = key.string()) {
    if (auto found = attribute_of(value, *name)) return *std::move(found);
  }
  constexpr std::int64_t kMaxShown = 16;
  return Undefined{str("'", value.type_name(), " object' has no item ",
                       key.weight() > kMaxShown ? key.type_name() : to_repr(key), ", which")};
}

Value slice(Interpreter& interpreter, const Value& value, const Value& from, const Value& to,
            const Value& step) {
  if (const List* list = value.list()) {
    List out{.items = {}, .tuple = list->tuple};
    interpreter.reserve(list->items.size() * sizeof(Value));
    walk(span_of(from, to, step, list->items.size()),
         [&](std::size_t i) { out.items.push_back(list->items[i]); });
    return out;
  }
  if (const std::string* text = value.string()) {
    interpreter.charge(value.weight() * 8);
    const Span span = span_of(from, to, step, length_of(*text));
    const auto first = static_cast<std::size_t>(std::max<std::int64_t>(span.from, 0));
    if (span.step == 1) {
      const auto count = static_cast<std::size_t>(std::max<std::int64_t>(span.to - span.from, 0));
      return part_of_text(value, characters(*text, first, count));
    }
    interpreter.reserve(text->size() * sizeof(std::string_view));
    const std::vector<std::string_view> letters = split_characters(*text);
    std::string out;
    walk(span, [&](std::size_t i) { out += letters[i]; });
    return value.marked() ? MarkedText::outside(std::move(out)) : MarkedText{std::move(out)};
  }
  if (value.undefined()) fail_undefined(value);
  fail("a ", value.type_name(), " has no slices");
}

std::vector<Value> items_of(Interpreter& interpreter, const Value& value) {
  std::vector<Value> items;
  if (const List* list = value.list()) {
    interpreter.reserve(list->items.size() * sizeof(Value));
    items = list->items;
  } else if (const Dict* dict = value.dict()) {
    interpreter.reserve(dict->size() * sizeof(Value));
    for (const auto& [key, item] : dict->items()) items.push_back(key);
  } else if (const std::string* text = value.string()) {
    interpreter.charge_values(length_of(*text));
    for (const std::string_view letter : split_characters(*text))
      items.push_back(part_of_text(value, letter));
  } else if (!value.undefined()) {
    fail("a ", value.type_name(), " cannot be looped over");
  }
  return items;
}

List pairs_of(Interpreter& interpreter, const Dict& dict) {
  interpreter.charge_values(dict.size() * 2);
  List list;
  for (const auto& [key, item] : dict.items())
    list.items.emplace_back(List{.items = {key, item}, .tuple = true});
  return list;
}

}  // namespace nvllm::jinja
