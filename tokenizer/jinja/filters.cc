// The filters, which follow "|".
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

Value length(I& interpreter, V& value, A&) {
  if (const std::string* text = value.string()) {
    interpreter.reserve(text->size());
    return length_of(*text);
  }
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

// The first or last item of a loop over the value, without creating all items.
Value item_at(I& interpreter, V& value, std::int64_t index, const char* what) {
  if (value.list() != nullptr || value.string() != nullptr) {
    Value item = subscript(interpreter, value, Value(index));
    return item.undefined() ? Value(Undefined{what}) : item;
  }
  const std::vector<Value> items = items_of(interpreter, value);
  if (items.empty()) return Undefined{what};
  return index == 0 ? items.front() : items.back();
}

Value first(I& interpreter, V& value, A&) {
  return item_at(interpreter, value, 0, "the first item of nothing");
}

Value last(I& interpreter, V& value, A&) {
  return item_at(interpreter, value, -1, "the last item of nothing");
}

Value join(I& interpreter, V& value, A& arguments) {
  const Value separator = arguments.take_string("d", "");
  const Value path = arguments.take("attribute", Value());
  std::vector<Value> texts = items_of(interpreter, value);
  for (Value& item : texts) {
    if (!path.none()) item = part_of(interpreter, item, path);
    if (item.string() != nullptr) continue;
    interpreter.charge(item.weight() * 8 + kValueBytes);
    item = as_text(item);
  }
  return joined(interpreter, texts, separator);
}

Value tojson(I& interpreter, V& value, A& arguments) {
  // The parameters of transformers' own tojson, in order.
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
  style.max_bytes = static_cast<std::size_t>(interpreter.work_left());
  std::string text = to_json(value, style);
  interpreter.reserve(text.size());
  return text;
}

Value indented(I& interpreter, V& value, A& arguments) {
  Value margin = arguments.take("width", 4);
  const bool first_too = arguments.take_truth("first", false);
  const bool blank_too = arguments.take_truth("blank", false);
  if (const auto columns = margin.integer(); columns && *columns >= 0 && *columns <= 1000) {
    margin = std::string(static_cast<std::size_t>(*columns), ' ');
  } else if (margin.string() == nullptr) {
    fail("indent: 'width' takes a string or a number up to 1000");
  }
  MarkedText out;
  const Value text = as_text(value);
  bool is_first = true;
  for (const std::string_view line : split_at(interpreter, *text.string(), "\n", -1)) {
    interpreter.charge(margin.weight() * 8 + kMarkBytes);
    if (!is_first) out.append("\n");
    if (is_first ? first_too : blank_too || !line.empty()) out.append(*margin.marked_text());
    out.append(*part_of_text(text, line).marked_text());
    is_first = false;
  }
  return out;
}

Value replace(I& interpreter, V& value, A& arguments) {
  const std::string what = arguments.take_text("old");
  const Value with = arguments.take_string("new");
  return replaced(interpreter, as_text(value), what, with, arguments.take_integer("count", -1));
}

Value trim(I& interpreter, V& value, A& arguments) {
  const std::string set = arguments.take_text("chars", "");
  interpreter.reserve(set.size() * kSetWork);
  const Value text = as_text(value);
  return part_of_text(text, stripped(*text.string(), set, Side::both));
}

Value truncate(I&, V& value, A& arguments) {
  const std::int64_t length = arguments.take_integer("length", 255);
  const bool anywhere = arguments.take_truth("killwords", false);
  const Value end = arguments.take_string("end", "...");
  const std::int64_t leeway = arguments.take_integer("leeway", 5);
  const Value text = as_text(value);
  const auto end_length = static_cast<std::int64_t>(length_of(*end.string()));
  if (length < end_length) fail("truncate: the length is less than that of '", *end.string(), "'");
  const auto all = static_cast<std::int64_t>(length_of(*text.string()));
  if (all <= length || all - length <= std::max<std::int64_t>(leeway, 0)) return text;
  std::string_view kept =
      characters(*text.string(), 0, static_cast<std::size_t>(length - end_length));
  if (!anywhere) kept = kept.substr(0, kept.rfind(' '));
  MarkedText out = *part_of_text(text, kept).marked_text();
  out.append(*end.marked_text());
  return out;
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

// A number, or the number in a text with optional white space around it.
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
  if (value.string() != nullptr) {
    return slice(interpreter, value, Value(), Value(), Value(-1));
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
  return pairs_of(interpreter, *value.dict());
}

Value percent(I& interpreter, V& value, Arguments& arguments) {
  return percent_format(interpreter, as_text(value),
                        Value(List{.items = arguments.positional, .tuple = true}));
}

Value attribute_filter(I& interpreter, V& value, A& arguments) {
  return attribute(interpreter, value, arguments.take_text("name"));
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

// How a filter uses the text of its input, which determines its cost and the marks of its result.
enum class Use : unsigned char {
  items,  // uses items, not all of the text in them, and charges for that itself
  parts,  // reads the text and keeps its marks
  anew,   // reads the text and creates another one, marked entirely if the text has marks
};

struct SimpleFilter {
  Use use;
  Value (*run)(I&, V&, A&);
};

const std::map<std::string_view, SimpleFilter>& simple_filters() {
  static const std::map<std::string_view, SimpleFilter> filters = {
      {"abs", {Use::items, absolute}},
      {"attr", {Use::items, attribute_filter}},
      {"batch", {Use::items, batched}},
      {"capitalize", {Use::anew, [](I&, V& v, A&) { return Value(capitalized(to_text(v))); }}},
      {"count", {Use::items, length}},
      {"d", {Use::items, fallback_for}},
      {"default", {Use::items, fallback_for}},
      {"dictsort", {Use::items, dict_sorted}},
      {"e", {Use::anew, [](I&, V& v, A&) { return Value(escaped(to_text(v))); }}},
      {"escape", {Use::anew, [](I&, V& v, A&) { return Value(escaped(to_text(v))); }}},
      {"first", {Use::items, first}},
      {"float", {Use::anew, real_number}},
      {"groupby", {Use::items, grouped}},
      {"indent", {Use::parts, indented}},
      {"int", {Use::anew, whole_number}},
      {"items", {Use::items, items}},
      {"join", {Use::parts, join}},
      {"last", {Use::items, last}},
      {"length", {Use::items, length}},
      {"list", {Use::items, [](I& i, V& v, A&) { return Value(List{.items = items_of(i, v)}); }}},
      {"lower", {Use::anew, [](I&, V& v, A&) { return Value(lower(to_text(v))); }}},
      {"max", {Use::items, [](I& i, V& v, A& a) { return extreme(i, v, a, 1); }}},
      {"min", {Use::items, [](I& i, V& v, A& a) { return extreme(i, v, a, -1); }}},
      {"pprint", {Use::anew, [](I&, V& v, A&) { return Value(to_repr(v)); }}},
      {"replace", {Use::parts, replace}},
      {"reverse", {Use::items, reversed}},
      {"round", {Use::items, rounded}},
      {"safe", {Use::items, [](I&, V& v, A&) { return v; }}},
      {"sort", {Use::items, sorted}},
      {"string", {Use::parts, [](I&, V& v, A&) { return as_text(v); }}},
      {"sum", {Use::items, sum}},
      {"title", {Use::anew, [](I&, V& v, A&) { return Value(titled(to_text(v))); }}},
      {"tojson", {Use::anew, tojson}},
      {"trim", {Use::parts, trim}},
      {"truncate", {Use::parts, truncate}},
      {"unique", {Use::items, unique}},
      {"upper", {Use::anew, [](I&, V& v, A&) { return Value(upper(to_text(v))); }}},
      {"urlencode", {Use::anew, url_encoded}},
      {"wordcount",
       {Use::anew, [](I& i, V& v, A&) { return Value(split_words(i, to_text(v), -1).size()); }}},
  };
  return filters;
}

// select, reject, selectattr, rejectattr: the items that pass a test.
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
    const Value looked_at = by_attribute ? part_of(interpreter, item, path) : item;
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
      list.items.push_back(part_of(interpreter, item, path));
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
  if (const auto found = list_filters().find(name); found != list_filters().end()) {
    return found->second(interpreter, input, arguments);
  }
  const auto found = simple_filters().find(name);
  if (found == simple_filters().end()) fail("there is no filter '", name, "'");
  const SimpleFilter& filter = found->second;
  ArgumentReader reader(name, arguments);
  const Extent given = reader.extent();
  interpreter.charge((given.weight + (filter.use == Use::items ? 0 : input.weight())) * 8);
  Value result = filter.run(interpreter, input, reader);
  reader.finish();
  if (filter.use != Use::anew) return result;
  return made_anew(interpreter, std::move(result), given.marked || input.marked());
}

}  // namespace nvllm::jinja
