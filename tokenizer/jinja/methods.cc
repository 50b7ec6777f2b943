// Methods of strings, lists and dicts.
#include <algorithm>
#include <map>
#include <string_view>

#include "tokenizer/jinja/functions.h"
#include "tokenizer/jinja/text.h"
#include "tokenizer/unicode/unicode.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::jinja {
namespace {

List list_of(const std::vector<std::string_view>& parts, bool tuple = false) {
  List list{.items = {}, .tuple = tuple};
  for (const std::string_view part : parts) list.items.emplace_back(part);
  return list;
}

// A string or a tuple of strings, one of which `fits`.
template <typename Fits>
bool any_fits(const Value& candidates, std::string_view method, const Fits& fits) {
  if (candidates.string() != nullptr) return fits(*candidates.string());
  const List* list = candidates.list();
  if (list == nullptr || !list->tuple)
    fail(method, " takes a string or a tuple, not ", candidates.type_name());
  return std::any_of(list->items.begin(), list->items.end(), [&](const Value& item) {
    if (item.string() == nullptr) fail(method, " takes strings, not ", item.type_name());
    return fits(*item.string());
  });
}

// Not empty, and all characters pass.
template <typename Pass>
bool all_pass(std::string_view text, const Pass& pass) {
  bool all = !text.empty();
  tokenizer::for_each_char(text, [&](char32_t c, std::string_view) { all = all && pass(c); });
  return all;
}

bool is_digit(char32_t c) {
  return tokenizer::char_record(c).in(tokenizer::category_bit(tokenizer::Category::kNd));
}

Value strip(const std::string& text, ArgumentReader& arguments, Side side) {
  const std::string set = arguments.take_text("chars", "");
  return stripped(text, set, side);
}

Value split(Interpreter& interpreter, const std::string& text, ArgumentReader& arguments,
            bool from_right) {
  const Value separator = arguments.take("sep", Value());
  const std::int64_t limit = arguments.take_integer("maxsplit", -1);
  interpreter.reserve(text.size() * 8);
  if (separator.none()) {
    if (from_right && limit >= 0) fail("rsplit: a maxsplit needs a separator");
    return list_of(split_words(text, limit));
  }
  if (separator.string() == nullptr)
    fail("split: 'sep' takes a string, not ", separator.type_name());
  return list_of(from_right ? split_at_last(text, *separator.string(), limit)
                            : split_at(text, *separator.string(), limit));
}

Value partition(const std::string& text, ArgumentReader& arguments, bool from_right) {
  const std::string separator = arguments.take_text("sep");
  if (separator.empty()) fail("partition: the separator is empty");
  const std::size_t at = from_right ? text.rfind(separator) : text.find(separator);
  const std::string_view all = text;
  if (at == std::string::npos) {
    return from_right ? list_of({"", "", all}, true) : list_of({all, "", ""}, true);
  }
  return list_of({all.substr(0, at), separator, all.substr(at + separator.size())}, true);
}

// In characters; -1: not there.
std::int64_t found_at(const std::string& text, std::size_t at) {
  return at == std::string::npos
             ? -1
             : static_cast<std::int64_t>(length_of(std::string_view(text).substr(0, at)));
}

// `side`: where the text stands in the width.
Value justify(Interpreter& interpreter, const std::string& text, ArgumentReader& arguments,
              Side side) {
  const std::int64_t width = arguments.take_integer("width", 0);
  const std::string fill = arguments.take_text("fillchar", " ");
  const auto length = static_cast<std::int64_t>(length_of(text));
  if (width <= length) return text;
  const auto missing = static_cast<std::size_t>(width - length);
  interpreter.reserve(missing);  // bounds the loops of an empty fill, and makes the next line exact
  interpreter.reserve(missing * fill.size());
  std::size_t left = side == Side::left ? 0 : missing;
  if (side == Side::both) left = missing / 2 + (missing & static_cast<std::size_t>(width) & 1);
  std::string out;
  for (std::size_t i = 0; i < left; ++i) out += fill;
  out += text;
  for (std::size_t i = left; i < missing; ++i) out += fill;
  return out;
}

Value join(Interpreter& interpreter, const std::string& text, ArgumentReader& arguments) {
  std::string out;
  std::string_view before;  // the next item
  for (const Value& item : items_of(interpreter, arguments.take("iterable"))) {
    if (item.string() == nullptr) fail("join takes strings, not ", item.type_name());
    interpreter.reserve(text.size() + item.string()->size());
    out.append(std::exchange(before, text)).append(*item.string());
  }
  return out;
}

Value count(Interpreter& interpreter, const std::string& text, ArgumentReader& arguments) {
  const std::string what = arguments.take_text("sub");
  interpreter.reserve(text.size());
  if (what.empty()) return length_of(text) + 1;
  return split_at(text, what, -1).size() - 1;
}

Value zero_filled(Interpreter& interpreter, const std::string& text, ArgumentReader& arguments) {
  const std::int64_t width = arguments.take_integer("width", 0);
  const auto length = static_cast<std::int64_t>(length_of(text));
  if (width <= length) return text;
  interpreter.reserve(static_cast<std::size_t>(width - length));
  const std::size_t sign = text.starts_with('-') || text.starts_with('+') ? 1 : 0;
  return text.substr(0, sign) + std::string(static_cast<std::size_t>(width - length), '0') +
         text.substr(sign);
}

using I = Interpreter;
using A = ArgumentReader;
using TextMethod = Value (*)(I&, const std::string&, A&);
using AnyMethod = Value (*)(I&, const Value&, A&);

const std::map<std::string_view, TextMethod>& text_methods() {
  using T = const std::string;
  static const std::map<std::string_view, TextMethod> methods = {
      {"split", [](I& i, T& t, A& a) { return split(i, t, a, false); }},
      {"rsplit", [](I& i, T& t, A& a) { return split(i, t, a, true); }},
      {"strip", [](I&, T& t, A& a) { return strip(t, a, Side::both); }},
      {"lstrip", [](I&, T& t, A& a) { return strip(t, a, Side::left); }},
      {"rstrip", [](I&, T& t, A& a) { return strip(t, a, Side::right); }},
      {"startswith",
       [](I&, T& t, A& a) {
         return Value(any_fits(a.take("prefix"), "startswith",
                               [&](const std::string& s) { return t.starts_with(s); }));
       }},
      {"endswith",
       [](I&, T& t, A& a) {
         return Value(any_fits(a.take("suffix"), "endswith",
                               [&](const std::string& s) { return t.ends_with(s); }));
       }},
      {"upper", [](I&, T& t, A&) { return Value(upper(t)); }},
      {"lower", [](I&, T& t, A&) { return Value(lower(t)); }},
      {"swapcase", [](I&, T& t, A&) { return Value(swapped_case(t)); }},
      {"title", [](I&, T& t, A&) { return Value(titled(t)); }},
      {"capitalize", [](I&, T& t, A&) { return Value(capitalized(t)); }},
      {"replace",
       [](I& i, T& t, A& a) {
         const std::string what = a.take_text("old");
         const std::string with = a.take_text("new");
         return Value(replaced(i, t, what, with, a.take_integer("count", -1)));
       }},
      {"removeprefix",
       [](I&, T& t, A& a) {
         const std::string prefix = a.take_text("prefix");
         return Value(t.starts_with(prefix) ? t.substr(prefix.size()) : t);
       }},
      {"removesuffix",
       [](I&, T& t, A& a) {
         const std::string suffix = a.take_text("suffix");
         return Value(t.ends_with(suffix) ? t.substr(0, t.size() - suffix.size()) : t);
       }},
      {"find", [](I&, T& t, A& a) { return Value(found_at(t, t.find(a.take_text("sub")))); }},
      {"rfind", [](I&, T& t, A& a) { return Value(found_at(t, t.rfind(a.take_text("sub")))); }},
      {"index",
       [](I&, T& t, A& a) {
         const std::int64_t at = found_at(t, t.find(a.take_text("sub")));
         if (at < 0) fail("index: the substring is not there");
         return Value(at);
       }},
      {"count", count},
      {"join", join},
      {"partition", [](I&, T& t, A& a) { return partition(t, a, false); }},
      {"rpartition", [](I&, T& t, A& a) { return partition(t, a, true); }},
      {"splitlines",
       [](I& i, T& t, A& a) {
         i.reserve(t.size() * 8);
         return Value(list_of(split_lines(t, a.take_truth("keepends", false))));
       }},
      {"isdigit", [](I&, T& t, A&) { return Value(all_pass(t, is_digit)); }},
      {"isnumeric", [](I&, T& t, A&) { return Value(all_pass(t, is_digit)); }},
      {"isalpha", [](I&, T& t, A&) { return Value(all_pass(t, tokenizer::is_letter)); }},
      {"isalnum",
       [](I&, T& t, A&) {
         return Value(
             all_pass(t, [](char32_t c) { return tokenizer::is_letter(c) || is_digit(c); }));
       }},
      {"isspace", [](I&, T& t, A&) { return Value(all_pass(t, is_space)); }},
      {"islower", [](I&, T& t, A&) { return Value(is_lower(t)); }},
      {"isupper", [](I&, T& t, A&) { return Value(is_upper(t)); }},
      {"ljust", [](I& i, T& t, A& a) { return justify(i, t, a, Side::left); }},
      {"center", [](I& i, T& t, A& a) { return justify(i, t, a, Side::both); }},
      {"rjust", [](I& i, T& t, A& a) { return justify(i, t, a, Side::right); }},
      {"zfill", zero_filled},
  };
  return methods;
}

const std::map<std::string_view, AnyMethod>& dict_methods() {
  using V = const Value;
  static const std::map<std::string_view, AnyMethod> methods = {
      {"items", [](I&, V& v, A&) { return Value(pairs_of(*v.dict())); }},
      {"keys", [](I& i, V& v, A&) { return Value(List{.items = items_of(i, v)}); }},
      {"values",
       [](I&, V& v, A&) {
         List list;
         for (const auto& [key, item] : v.dict()->items()) list.items.push_back(item);
         return Value(std::move(list));
       }},
      {"get",
       [](I&, V& v, A& a) {
         const Value key = a.take("key");
         const Value* found = v.dict()->find(key);
         Value fallback = a.take("default", Value());
         return found != nullptr ? *found : fallback;
       }},
      {"copy", [](I&, V& v, A&) { return v; }},
  };
  return methods;
}

const std::map<std::string_view, AnyMethod>& list_methods() {
  using V = const Value;
  static const std::map<std::string_view, AnyMethod> methods = {
      {"index",
       [](I& i, V& v, A& a) {
         const Value what = a.take("value");
         const auto& items = v.list()->items;
         i.reserve(items.size() * 32);
         const auto at = std::ranges::find_if(items, [&](V& item) { return equal(item, what); });
         if (at == items.end()) fail("index: the value is not in the list");
         return Value(static_cast<std::int64_t>(at - items.begin()));
       }},
      {"count",
       [](I& i, V& v, A& a) {
         const Value what = a.take("value");
         const auto& items = v.list()->items;
         i.reserve(items.size() * 32);
         return Value(std::int64_t{
             std::ranges::count_if(items, [&](V& item) { return equal(item, what); })});
       }},
      {"copy", [](I&, V& v, A&) { return v; }},
  };
  return methods;
}

// A method bound to its value: run(interpreter, arguments) must read all of the arguments.
template <typename Run>
Value bound(const std::string& name, Extent extent, Run run) {
  return Callable{.name = name,
                  .call =
                      [name, run = std::move(run)](I& interpreter, Arguments& arguments) {
                        ArgumentReader reader(name, arguments);
                        Value result = run(interpreter, reader);
                        reader.finish();
                        return result;
                      },
                  .extent = extent};
}

std::optional<Value> method_of_text(const Value& value, const std::string& name) {
  if (name == "format") {
    return Callable{.name = name, .call = [value](I& interpreter, Arguments& arguments) {
                      return Value(brace_format(interpreter, *value.string(), arguments));
                    }};
  }
  const auto found = text_methods().find(name);
  if (found == text_methods().end()) return std::nullopt;
  return bound(name, {}, [value, method = found->second](I& interpreter, A& arguments) {
    interpreter.reserve(value.string()->size());
    return method(interpreter, *value.string(), arguments);
  });
}

std::optional<Value> method_among(const std::map<std::string_view, AnyMethod>& methods,
                                  const Value& value, const std::string& name) {
  const auto found = methods.find(name);
  if (found == methods.end()) return std::nullopt;
  Extent extent;
  extent.add(value);
  return bound(name, extent, [value, method = found->second](I& interpreter, A& arguments) {
    interpreter.charge(value.weight());
    return method(interpreter, value, arguments);
  });
}

}  // namespace

std::optional<Value> method_of(const Value& value, const std::string& name) {
  if (value.string() != nullptr) return method_of_text(value, name);
  if (value.dict() != nullptr) return method_among(dict_methods(), value, name);
  if (value.list() != nullptr) return method_among(list_methods(), value, name);
  return std::nullopt;
}

}  // namespace nvllm::jinja
