// The filters: what can stand after "|".
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string_view>

#include "tokenizer/jinja/functions.h"
#include "tokenizer/jinja/text.h"

namespace nvllm::jinja {
namespace {

using I = Interpreter;
using V = const Value;
using A = ArgumentReader;

Value length(I&, V& value, A&) {
  if (const std::string* text = value.string()) return length_of(*text);
  if (const List* list = value.list()) return list->items.size();
  if (const Dict* dict = value.dict()) return dict->size();
  if (value.undefined()) return 0;
  fail("length: a ", value.type_name(), " has none");
}

Value fallback_for(I&, V& value, A& arguments) {
  Value fallback = arguments.take("default_value", "");
  const bool for_false = arguments.take_truth("boolean", false);
  return value.undefined() || (for_false && !value.truth()) ? fallback : value;
}

Value first(I& interpreter, V& value, A&) {
  const std::vector<Value> items = items_of(interpreter, value);
  return items.empty() ? Value(Undefined{"the first item of nothing"}) : items.front();
}

Value last(I& interpreter, V& value, A&) {
  const std::vector<Value> items = items_of(interpreter, value);
  return items.empty() ? Value(Undefined{"the last item of nothing"}) : items.back();
}

Value join(I& interpreter, V& value, A& arguments) {
  const std::string separator = arguments.take_text("d", "");
  const Value path = arguments.take("attribute", Value());
  std::string out;
  std::string_view before;  // the next item
  for (const Value& item : items_of(interpreter, value)) {
    const std::string text = to_text(path.none() ? item : part_of(item, path));
    interpreter.reserve(separator.size() + text.size());
    out.append(std::exchange(before, separator)).append(text);
  }
  return out;
}

Value tojson(I& interpreter, V& value, A& arguments) {
  // In the order of transformers' own tojson.
  JsonStyle style;
  style.ascii = arguments.take_truth("ensure_ascii", false);
  const Value indent = arguments.take("indent", Value());
  const Value separators = arguments.take("separators", Value());
  style.sort_keys = arguments.take_truth("sort_keys", false);
  if (!indent.none()) {
    const auto width = indent.integer();
    if (!width || *width < 0 || *width > 100) fail("tojson: 'indent' takes a number up to 100");
    style.indent = static_cast<int>(*width);
  }
  if (const List* pair = separators.list(); pair != nullptr && pair->items.size() == 2) {
    style.item_separator = to_text(pair->items[0]);
    style.key_separator = to_text(pair->items[1]);
  } else if (!separators.none()) {
    fail("tojson: 'separators' takes two strings");
  }
  std::string text = to_json(value, style);
  interpreter.reserve(text.size());
  return text;
}

Value indented(I& interpreter, V& value, A& arguments) {
  const Value width = arguments.take("width", 4);
  const bool first_too = arguments.take_truth("first", false);
  const bool blank_too = arguments.take_truth("blank", false);
  std::string margin;
  if (width.string() != nullptr) {
    margin = *width.string();
  } else if (const auto columns = width.integer(); columns && *columns >= 0 && *columns <= 1000) {
    margin.assign(static_cast<std::size_t>(*columns), ' ');
  } else {
    fail("indent: 'width' takes a string or a number up to 1000");
  }
  std::string out;
  const std::string text = to_text(value);
  bool is_first = true;
  for (const std::string_view line : split_at(text, "\n", -1)) {
    interpreter.reserve(margin.size() + line.size());
    if (!is_first) out += '\n';
    if (is_first ? first_too : blank_too || !line.empty()) out += margin;
    out += line;
    is_first = false;
  }
  return out;
}

Value replace(I& interpreter, V& value, A& arguments) {
  const std::string what = arguments.take_text("old");
  const std::string with = arguments.take_text("new");
  return replaced(interpreter, to_text(value), what, with, arguments.take_integer("count", -1));
}

Value trim(I&, V& value, A& arguments) {
  const std::string set = arguments.take_text("chars", "");
  return stripped(to_text(value), set, Side::both);
}

Value truncate(I&, V& value, A& arguments) {
  const std::int64_t length = arguments.take_integer("length", 255);
  const bool anywhere = arguments.take_truth("killwords", false);
  const std::string end = arguments.take_text("end", "...");
  const std::int64_t leeway = arguments.take_integer("leeway", 5);
  const std::string text = to_text(value);
  const auto end_length = static_cast<std::int64_t>(length_of(end));
  if (length < end_length) fail("truncate: the length is less than that of '", end, "'");
  if (static_cast<std::int64_t>(length_of(text)) <= length + std::max<std::int64_t>(leeway, 0))
    return text;
  std::string_view kept = characters(text, 0, static_cast<std::size_t>(length - end_length));
  if (!anywhere) kept = kept.substr(0, kept.rfind(' '));
  return std::string(kept) + end;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&#34;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

// A number, or the one that a text spells between white space.
std::optional<double> as_real(const Value& value) {
  if (value.string() == nullptr) return value.number();
  const std::string text(stripped(*value.string(), {}, Side::both));
  char* end = nullptr;
  const double real = std::strtod(text.c_str(), &end);
  return text.empty() || *end != '\0' ? std::nullopt : std::optional(real);
}

Value whole_number(I&, V& value, A& arguments) {
  Value fallback = arguments.take("default", 0);
  if (value.get<std::int64_t>() != nullptr) return value;
  if (value.string() != nullptr) {
    const std::string text(stripped(*value.string(), {}, Side::both));
    char* end = nullptr;
    errno = 0;
    const long long whole = std::strtoll(text.c_str(), &end, 10);
    if (!text.empty() && *end == '\0' && errno == 0) return std::int64_t{whole};
  }
  const double real = as_real(value).value_or(INFINITY);
  return real > -9.2e18 && real < 9.2e18 ? Value(static_cast<std::int64_t>(real)) : fallback;
}

Value real_number(I&, V& value, A& arguments) {
  Value fallback = arguments.take("default", 0.0);
  const auto real = as_real(value);
  return real ? Value(*real) : fallback;
}

Value absolute(I&, V& value, A&) {
  if (const double* real = value.get<double>()) return std::fabs(*real);
  const auto whole = value.integer();
  if (!whole) fail("abs takes a number, not ", value.type_name());
  return *whole < 0 ? negated(value) : Value(*whole);
}

Value rounded(I&, V& value, A& arguments) {
  const std::int64_t places = arguments.take_integer("precision", 0);
  const std::string method = arguments.take_text("method", "common");
  const auto real = value.number();
  if (!real) fail("round takes a number, not ", value.type_name());
  const double scale = std::pow(10.0, static_cast<double>(places));
  if (method == "ceil") return std::ceil(*real * scale) / scale;
  if (method == "floor") return std::floor(*real * scale) / scale;
  if (method != "common") fail("round: 'method' is common, ceil or floor, not '", method, "'");
  return std::nearbyint(*real * scale) / scale;
}

Value reversed(I& interpreter, V& value, A&) {
  if (const std::string* text = value.string()) {
    return slice(interpreter, Value(*text), Value(), Value(), Value(-1));
  }
  List list{.items = items_of(interpreter, value)};
  std::reverse(list.items.begin(), list.items.end());
  return list;
}

Value batched(I& interpreter, V& value, A& arguments) {
  const std::int64_t size = arguments.take_integer("linecount", 1);
  const Value fill = arguments.take("fill_with", Value());
  if (size < 1 || size > 1000000) fail("batch: ", size, " is no size of a batch");
  List batches;
  List batch;
  for (const Value& item : items_of(interpreter, value)) {
    batch.items.push_back(item);
    if (static_cast<std::int64_t>(batch.items.size()) == size)
      batches.items.emplace_back(std::exchange(batch, {}));
  }
  if (!batch.items.empty()) {
    if (!fill.none()) {
      interpreter.reserve(static_cast<std::size_t>(size) * sizeof(Value));
      batch.items.resize(static_cast<std::size_t>(size), fill);
    }
    batches.items.emplace_back(std::move(batch));
  }
  return batches;
}

Value items(I& interpreter, V& value, A&) {
  if (value.undefined()) return List{};
  if (value.dict() == nullptr) fail("items takes a dict, not ", value.type_name());
  interpreter.charge(value.weight());
  return pairs_of(*value.dict());
}

Value percent(I& interpreter, V& value, Arguments& arguments) {
  return percent_format(interpreter, to_text(value),
                        Value(List{.items = arguments.positional, .tuple = true}));
}

Value attribute_filter(I&, V& value, A& arguments) {
  return attribute(value, arguments.take_text("name"));
}

Value url_encoded(I& interpreter, V& value, A&) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  const std::string text = to_text(value);
  interpreter.reserve(text.size() * 3);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (plain || std::string_view("_.-~/").find(c) != std::string_view::npos) {
      out += c;
    } else {
      out += '%';
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  return out;
}

const std::map<std::string_view, Value (*)(I&, V&, A&)>& simple_filters() {
  static const std::map<std::string_view, Value (*)(I&, V&, A&)> filters = {
      {"abs", absolute},
      {"attr", attribute_filter},
      {"batch", batched},
      {"capitalize", [](I&, V& v, A&) { return Value(capitalized(to_text(v))); }},
      {"count", length},
      {"d", fallback_for},
      {"default", fallback_for},
      {"dictsort", dict_sorted},
      {"e", [](I&, V& v, A&) { return Value(escaped(to_text(v))); }},
      {"escape", [](I&, V& v, A&) { return Value(escaped(to_text(v))); }},
      {"first", first},
      {"float", real_number},
      {"groupby", grouped},
      {"indent", indented},
      {"int", whole_number},
      {"items", items},
      {"join", join},
      {"last", last},
      {"length", length},
      {"list", [](I& i, V& v, A&) { return Value(List{.items = items_of(i, v)}); }},
      {"lower", [](I&, V& v, A&) { return Value(lower(to_text(v))); }},
      {"max", [](I& i, V& v, A& a) { return extreme(i, v, a, 1); }},
      {"min", [](I& i, V& v, A& a) { return extreme(i, v, a, -1); }},
      {"pprint", [](I&, V& v, A&) { return Value(to_repr(v)); }},
      {"replace", replace},
      {"reverse", reversed},
      {"round", rounded},
      {"safe", [](I&, V& v, A&) { return v; }},
      {"sort", sorted},
      {"string", [](I&, V& v, A&) { return Value(to_text(v)); }},
      {"sum", sum},
      {"title", [](I&, V& v, A&) { return Value(titled(to_text(v))); }},
      {"tojson", tojson},
      {"trim", trim},
      {"truncate", truncate},
      {"unique", unique},
      {"upper", [](I&, V& v, A&) { return Value(upper(to_text(v))); }},
      {"urlencode", url_encoded},
      {"wordcount", [](I&, V& v, A&) { return Value(split_words(to_text(v), -1).size()); }},
  };
  return filters;
}

// select, reject, selectattr, rejectattr: which items pass a test.
Value chosen(I& interpreter, const Value& value, Arguments& arguments, bool by_attribute,
             bool keep) {
  std::size_t next = 0;
  Value path;
  if (by_attribute) {
    if (arguments.positional.empty()) fail("selectattr: the attribute is missing");
    path = arguments.positional[next++];
  }
  std::string name;
  if (next < arguments.positional.size()) name = to_text(arguments.positional[next++]);
  const std::vector<Value> rest(arguments.positional.begin() + static_cast<std::ptrdiff_t>(next),
                                arguments.positional.end());
  List list;
  for (const Value& item : items_of(interpreter, value)) {
    const Value looked_at = by_attribute ? part_of(item, path) : item;
    Arguments given{.positional = rest, .named = arguments.named};
    const bool passes = name.empty() ? looked_at.truth() : interpreter.test(name, looked_at, given);
    if (passes == keep) list.items.push_back(item);
  }
  return list;
}

// map(attribute="x", default=y) or map("filter", arguments...)
Value mapped(I& interpreter, const Value& value, Arguments& arguments) {
  List list;
  const std::vector<Value> items = items_of(interpreter, value);
  if (arguments.positional.empty()) {
    ArgumentReader reader("map", arguments);
    const Value path = reader.take("attribute");
    const Value fallback = reader.take("default", Value(Undefined{"an attribute"}));
    reader.finish();
    for (const Value& item : items) {
      list.items.push_back(part_of(item, path));
      if (list.items.back().undefined() && !fallback.undefined()) list.items.back() = fallback;
    }
    return list;
  }
  const std::string name = to_text(arguments.positional[0]);
  const std::vector<Value> rest(arguments.positional.begin() + 1, arguments.positional.end());
  for (const Value& item : items) {
    Arguments given{.positional = rest, .named = arguments.named};
    list.items.push_back(interpreter.filter(name, item, given));
  }
  return list;
}

using ListFilter = Value (*)(I&, const Value&, Arguments&);

const std::map<std::string_view, ListFilter>& list_filters() {
  static const std::map<std::string_view, ListFilter> filters = {
      {"format", percent},
      {"map", mapped},
      {"select", [](I& i, V& v, Arguments& a) { return chosen(i, v, a, false, true); }},
      {"reject", [](I& i, V& v, Arguments& a) { return chosen(i, v, a, false, false); }},
      {"selectattr", [](I& i, V& v, Arguments& a) { return chosen(i, v, a, true, true); }},
      {"rejectattr", [](I& i, V& v, Arguments& a) { return chosen(i, v, a, true, false); }},
  };
  return filters;
}

}  // namespace

bool has_filter(const std::string& name) {
  return simple_filters().contains(name) || list_filters().contains(name);
}

Value run_filter(Interpreter& interpreter, const std::string& name, const Value& input,
                 Arguments& arguments) {
  interpreter.charge(input.weight() * 8);
  if (const auto found = list_filters().find(name); found != list_filters().end()) {
    return found->second(interpreter, input, arguments);
  }
  const auto found = simple_filters().find(name);
  if (found == simple_filters().end()) fail("there is no filter '", name, "'");
  ArgumentReader reader(name, arguments);
  Value result = found->second(interpreter, input, reader);
  reader.finish();
  return result;
}

}  // namespace nvllm::jinja
