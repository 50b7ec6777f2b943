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

// A list of the parts of a text.
List list_of(const Value& text, const std::vector<std::string_view>& parts) {
  List list;
  for (const std::string_view part : parts) list.items.push_back(part_of_text(text, part));
  return list;
}

// Whether `fits` holds for a string, or for any of a tuple of strings.
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

// Whether it is not empty, and all characters pass.
template <typename Pass>
bool all_pass(std::string_view text, const Pass& pass) {
  bool all = !text.empty();
  tokenizer::for_each_char(text, [&](char32_t c, std::string_view) { all = all && pass(c); });
  return all;
}

bool is_digit(char32_t c) {
  return tokenizer::char_record(c).in(tokenizer::category_bit(tokenizer::Category::kNd));
}

Value strip(Interpreter& interpreter, const Value& text, ArgumentReader& arguments, Side side) {
  const std::string set = arguments.take_text("chars", "");
  interpreter.reserve(set.size() * kSetWork);
  return part_of_text(text, stripped(*text.string(), set, side));
}

Value split(Interpreter& interpreter, const Value& text, ArgumentReader& arguments,
            bool from_right) {
  const Value separator = arguments.take("sep", Value());
  const std::int64_t limit = arguments.take_integer("maxsplit", -1);
  const std::string_view all = *text.string();
  if (separator.none()) {
    if (from_right && limit >= 0) fail("rsplit: a maxsplit needs a separator");
    return list_of(text, split_words(interpreter, all, limit));
  }
  if (separator.string() == nullptr)
    fail("split: 'sep' takes a string, not ", separator.type_name());
  return list_of(text, from_right ? split_at_last(interpreter, all, *separator.string(), limit)
                                  : split_at(interpreter, all, *separator.string(), limit));
}

Value partition(const Value& text, ArgumentReader& arguments, bool from_right) {
  const std::string what = arguments.take_text("sep");
  if (what.empty()) fail("partition: the separator is empty");
  const std::string_view all = *text.string();
  const std::size_t at = from_right ? find_last_text(all, what) : find_text(all, what);
  List parts{.items = {text, "", ""}, .tuple = true};
  if (at != std::string_view::npos) {
    parts.items = {part_of_text(text, all.substr(0, at)),
                   part_of_text(text, all.substr(at, what.size())),
                   part_of_text(text, all.substr(at + what.size()))};
  } else if (from_right) {
    std::swap(parts.items.front(), parts.items.back());
  }
  return parts;
}

// In characters; -1: not there.
std::int64_t found_at(const std::string& text, std::size_t at) {
  return at == std::string::npos
             ? -1
             : static_cast<std::int64_t>(length_of(std::string_view(text).substr(0, at)));
}

// `side`: the side on which the text is placed.
Value justify(Interpreter& interpreter, const Value& text, ArgumentReader& arguments, Side side) {
  const std::int64_t width = arguments.take_integer("width", 0);
  return justified(interpreter, text, width, arguments.take_string("fillchar", " "), side);
}

Value join(Interpreter& interpreter, const Value& text, ArgumentReader& arguments) {
  const std::vector<Value> items = items_of(interpreter, arguments.take("iterable"));
  for (const Value& item : items) {
    if (item.string() == nullptr) fail("join takes strings, not ", item.type_name());
  }
  return joined(interpreter, items, text);
}

Value count(Interpreter&, const std::string& text, ArgumentReader& arguments) {
  const std::string what = arguments.take_text("sub");
  if (what.empty()) return length_of(text) + 1;
  std::int64_t found = 0;
  for (std::size_t at = 0; (at = find_text(text, what, at)) != std::string::npos;) {
    at += what.size();
    ++found;
  }
  return found;
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
using TextMethod = Value (*)(I&, const std::string&, A&);  // creates a new text, or another value
using AnyMethod = Value (*)(I&, const Value&, A&);

// Methods that keep the marks of the text, which is the value.
const std::map<std::string_view, AnyMethod>& part_methods() {
  using V = const Value;
  static const std::map<std::string_view, AnyMethod> methods = {
      {"split", [](I& i, V& v, A& a) { return split(i, v, a, false); }},
      {"rsplit", [](I& i, V& v, A& a) { return split(i, v, a, true); }},
      {"strip", [](I& i, V& v, A& a) { return strip(i, v, a, Side::both); }},
      {"lstrip", [](I& i, V& v, A& a) { return strip(i, v, a, Side::left); }},
      {"rstrip", [](I& i, V& v, A& a) { return strip(i, v, a, Side::right); }},
      {"replace",
       [](I& i, V& v, A& a) {
         const std::string what = a.take_text("old");
         const Value with = a.take_string("new");
         return replaced(i, v, what, with, a.take_integer("count", -1));
       }},
      {"removeprefix",
       [](I&, V& v, A& a) {
         const std::string prefix = a.take_text("prefix");
         const std::string_view text = *v.string();
         return text.starts_with(prefix) ? part_of_text(v, text.substr(prefix.size())) : v;
       }},
      {"removesuffix",
       [](I&, V& v, A& a) {
         const std::string suffix = a.take_text("suffix");
         const std::string_view text = *v.string();
         if (!text.ends_with(suffix)) return v;
         return part_of_text(v, text.substr(0, text.size() - suffix.size()));
       }},
      {"join", join},
      {"partition", [](I&, V& v, A& a) { return partition(v, a, false); }},
      {"rpartition", [](I&, V& v, A& a) { return partition(v, a, true); }},
      {"splitlines",
       [](I& i, V& v, A& a) {
         return Value(list_of(v, split_lines(i, *v.string(), a.take_truth("keepends", false))));
       }},
      {"ljust", [](I& i, V& v, A& a) { return justify(i, v, a, Side::left); }},
      {"center", [](I& i, V& v, A& a) { return justify(i, v, a, Side::both); }},
      {"rjust", [](I& i, V& v, A& a) { return justify(i, v, a, Side::right); }},
  };
  return methods;
}

const std::map<std::string_view, TextMethod>& text_methods() {
  using T = const std::string;
  static const std::map<std::string_view, TextMethod> methods = {
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
      {"find", [](I&, T& t, A& a) { return Value(found_at(t, find_text(t, a.take_text("sub")))); }},
      {"rfind",
       [](I&, T& t, A& a) { return Value(found_at(t, find_last_text(t, a.take_text("sub")))); }},
      {"index",
       [](I&, T& t, A& a) {
         const std::int64_t at = found_at(t, find_text(t, a.take_text("sub")));
         if (at < 0) fail("index: the substring is not there");
         return Value(at);
       }},
      {"count", count},
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
      {"zfill", zero_filled},
  };
  return methods;
}

const std::map<std::string_view, AnyMethod>& dict_methods() {
  using V = const Value;
  static const std::map<std::string_view, AnyMethod> methods = {
      {"items", [](I& i, V& v, A&) { return Value(pairs_of(i, *v.dict())); }},
      {"keys", [](I& i, V& v, A&) { return Value(List{.items = items_of(i, v)}); }},
      {"values",
       [](I& i, V& v, A&) {
         List list;
         i.reserve(v.dict()->size() * sizeof(Value));
         for (const auto& [key, item] : v.dict()->items()) list.items.push_back(item);
         return Value(std::move(list));
       }},
      {"get",
       [](I& i, V& v, A& a) {
         const Value key = a.take("key");
         charge_find(i, key);
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
         i.charge(v.weight() + static_cast<std::int64_t>(items.size()) * 32);
         const auto at = std::ranges::find_if(items, [&](V& item) { return equal(item, what); });
         if (at == items.end()) fail("index: the value is not in the list");
         return Value(static_cast<std::int64_t>(at - items.begin()));
       }},
      {"count",
       [](I& i, V& v, A& a) {
         const Value what = a.take("value");
         const auto& items = v.list()->items;
         i.charge(v.weight() + static_cast<std::int64_t>(items.size()) * 32);
         return Value(std::int64_t{
             std::ranges::count_if(items, [&](V& item) { return equal(item, what); })});
       }},
      {"copy", [](I&, V& v, A&) { return v; }},
  };
  return methods;
}

// A method bound to its value: run(interpreter, arguments) must consume all arguments.
template <typename Run>
Value bound(const std::string& name, const Value& value, Run run) {
  Extent extent;
  extent.add(value);
  return Callable{.name = name,
                  .call =
                      [name, run = std::move(run)](I& interpreter, Arguments& arguments) {
                        ArgumentReader reader(name, arguments);
                        interpreter.charge(reader.extent().weight * 8);
                        Value result = run(interpreter, reader);
                        reader.finish();
                        return result;
                      },
                  .extent = extent};
}

std::optional<Value> method_of_text(const Value& value, const std::string& name) {
  if (name == "format") {
    return Callable{.name = name, .call = [value](I& interpreter, Arguments& arguments) {
                      interpreter.charge(value.weight() * 8);
                      return brace_format(interpreter, value, arguments);
                    }};
  }
  if (const auto found = part_methods().find(name); found != part_methods().end()) {
    return bound(name, value, [value, method = found->second](I& interpreter, A& arguments) {
      interpreter.charge(value.weight() * 8);
      return method(interpreter, value, arguments);
    });
  }
  const auto found = text_methods().find(name);
  if (found == text_methods().end()) return std::nullopt;
  return bound(name, value, [value, method = found->second](I& interpreter, A& arguments) {
    interpreter.charge(value.weight() * 8);
    const bool marked = value.marked() || arguments.extent().marked;
    return made_anew(interpreter, method(interpreter, *value.string(), arguments), marked);
  });
}

std::optional<Value> method_among(const std::map<std::string_view, AnyMethod>& methods,
                                  const Value& value, const std::string& name) {
  const auto found = methods.find(name);
  if (found == methods.end()) return std::nullopt;
  return bound(name, value, [value, method = found->second](I& interpreter, A& arguments) {
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
