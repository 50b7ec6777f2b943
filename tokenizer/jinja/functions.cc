#include "tokenizer/jinja/functions.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string_view>

#include "tokenizer/jinja/template.h"
#include "tokenizer/jinja/text.h"

namespace nvllm::jinja {
namespace {

constexpr std::int64_t kMaxRange = 100000;

Value range(Interpreter& interpreter, Arguments& arguments) {
  ArgumentReader reader("range", arguments);
  std::int64_t from = 0;
  std::int64_t to = reader.take_integer("stop", 0);
  if (reader.next_is_given("end")) {
    from = to;
    to = reader.take_integer("end", 0);
  }
  const std::int64_t step = reader.take_integer("step", 1);
  reader.finish();
  if (step == 0) fail("range: the step is 0");
  List list;
  while (step > 0 ? from < to : from > to) {
    if (static_cast<std::int64_t>(list.items.size()) == kMaxRange) {
      fail("range: more than ", kMaxRange, " numbers");
    }
    interpreter.reserve(sizeof(Value));
    list.items.emplace_back(from);
    if (__builtin_add_overflow(from, step, &from)) break;
  }
  return list;
}

Dict named_values(Interpreter& interpreter, std::string_view function, Arguments& arguments) {
  Dict values;
  if (arguments.positional.size() > 1) fail(function, ": too many arguments");
  if (arguments.positional.size() == 1) {
    const Dict* dict = arguments.positional[0].dict();
    if (dict == nullptr) fail(function, " takes a dict, not ", arguments.positional[0].type_name());
    interpreter.charge_values(dict->size() * 2);
    values = *dict;
  }
  interpreter.charge_values(arguments.named.size() * 2);
  for (auto& [name, value] : arguments.named) values.set(name, std::move(value));
  return values;
}

Value dict(Interpreter& interpreter, Arguments& arguments) {
  return named_values(interpreter, "dict", arguments);
}

Value name_space(Interpreter& interpreter, Arguments& arguments) {
  return interpreter.make_namespace(named_values(interpreter, "namespace", arguments));
}

Value joiner(Interpreter&, Arguments& arguments) {
  ArgumentReader reader("joiner", arguments);
  const Value separator = reader.take("sep", ", ");
  reader.finish();
  if (separator.string() == nullptr) {
    fail("joiner: 'sep' takes a string, not ", separator.type_name());
  }
  return Callable{
      .name = "joiner",
      .call = [separator, used = std::make_shared<bool>(false)](Interpreter&, Arguments&) {
        return std::exchange(*used, true) ? separator : Value("");
      }};
}

Value raise(Interpreter&, Arguments& arguments) {
  ArgumentReader reader("raise_exception", arguments);
  const std::string message = reader.take_text("message", "");
  throw TemplateRaised(message);
}

Value now(Interpreter& interpreter, Arguments& arguments) {
  ArgumentReader reader("strftime_now", arguments);
  const Value format = reader.take("format");
  reader.finish();
  if (format.string() == nullptr) {
    fail("strftime_now: 'format' takes a string, not ", format.type_name());
  }
  interpreter.charge(format.weight() * 8);
  std::string text = time_text(*format.string());
  return format.marked() ? MarkedText::outside(std::move(text)) : MarkedText{std::move(text)};
}

using Test = bool (*)(Interpreter&, const Value&, ArgumentReader&);

bool is_sequence(const Value& value) {
  return value.list() != nullptr || value.dict() != nullptr || value.string() != nullptr ||
         value.undefined();
}

std::int64_t remainder(const Value& value, std::int64_t by) {
  const auto whole = value.integer();
  if (!whole) fail("this test takes an integer, not ", value.type_name());
  if (by == 0) fail("division by zero");
  return by == -1 ? 0 : *whole % by;
}

// Whether the value compares this way to the argument.
template <typename Order>
bool compares(Interpreter& interpreter, const Value& value, ArgumentReader& arguments) {
  const Value other = arguments.take("other");
  charge_comparison(interpreter, value, other);
  return Order()(compare(value, other), 0);
}

bool is_same(Interpreter& interpreter, const Value& value, ArgumentReader& arguments) {
  const Value other = arguments.take("other");
  charge_comparison(interpreter, value, other);
  return equal(value, other);
}

// for a string, or a value converted to text
template <bool (*test)(std::string_view)>
bool has_case(Interpreter& interpreter, const Value& value, ArgumentReader&) {
  interpreter.charge(value.weight() * 8);
  return test(to_text(value));
}

const std::map<std::string_view, Test>& all() {
  using I = Interpreter;
  using V = const Value;
  using A = ArgumentReader;
  constexpr Test kEqual = is_same;
  constexpr Test kNotEqual = [](I& i, V& v, A& a) { return !is_same(i, v, a); };
  static const std::map<std::string_view, Test> tests = {
      {"defined", [](I&, V& v, A&) { return !v.undefined(); }},
      {"undefined", [](I&, V& v, A&) { return v.undefined(); }},
      {"none", [](I&, V& v, A&) { return v.none(); }},
      {"boolean", [](I&, V& v, A&) { return v.get<bool>() != nullptr; }},
      {"true", [](I&, V& v, A&) { return v.get<bool>() != nullptr && *v.get<bool>(); }},
      {"false", [](I&, V& v, A&) { return v.get<bool>() != nullptr && !*v.get<bool>(); }},
      {"integer", [](I&, V& v, A&) { return v.get<std::int64_t>() != nullptr; }},
      {"float", [](I&, V& v, A&) { return v.get<double>() != nullptr; }},
      {"number", [](I&, V& v, A&) { return v.number().has_value(); }},
      {"string", [](I&, V& v, A&) { return v.string() != nullptr; }},
      {"mapping", [](I&, V& v, A&) { return v.dict() != nullptr; }},
      {"sequence", [](I&, V& v, A&) { return is_sequence(v); }},
      {"iterable", [](I&, V& v, A&) { return is_sequence(v); }},
      {"callable", [](I&, V& v, A&) { return v.callable() != nullptr; }},
      {"odd", [](I&, V& v, A&) { return remainder(v, 2) != 0; }},
      {"even", [](I&, V& v, A&) { return remainder(v, 2) == 0; }},
      {"divisibleby", [](I&, V& v, A& a) { return remainder(v, a.take_integer("num", 1)) == 0; }},
      {"lower", has_case<is_lower>},
      {"upper", has_case<is_upper>},
      {"in", [](I& i, V& v, A& a) { return contains(i, a.take("seq"), v); }},
      {"sameas",
       [](I& i, V& v, A& a) {
         const Value other = a.take("other");
         charge_comparison(i, v, other);
         return std::string_view(v.type_name()) == other.type_name() && equal(v, other);
       }},
      {"eq", kEqual},
      {"equalto", kEqual},
      {"==", kEqual},
      {"ne", kNotEqual},
      {"!=", kNotEqual},
      {"lt", compares<std::less<>>},
      {"lessthan", compares<std::less<>>},
      {"<", compares<std::less<>>},
      {"gt", compares<std::greater<>>},
      {"greaterthan", compares<std::greater<>>},
      {">", compares<std::greater<>>},
      {"le", compares<std::less_equal<>>},
      {"<=", compares<std::less_equal<>>},
      {"ge", compares<std::greater_equal<>>},
      {">=", compares<std::greater_equal<>>},
  };
  return tests;
}

}  // namespace

Dict global_functions() {
  using Function = Value (*)(Interpreter&, Arguments&);
  constexpr std::pair<const char*, Function> kFunctions[] = {
      {"range", range},           {"dict", dict},
      {"namespace", name_space},  {"joiner", joiner},
      {"raise_exception", raise}, {"strftime_now", now}};
  Dict globals;
  for (const auto& [name, function] : kFunctions) {
    globals.set(name, Callable{.name = name, .call = function});
  }
  return globals;
}

// The tests, which follow "is".

bool has_test(const std::string& name) {
  return all().contains(name);
}

bool run_test(Interpreter& interpreter, const std::string& name, const Value& value,
              Arguments& arguments) {
  const auto found = all().find(name);
  if (found == all().end()) fail("there is no test '", name, "'");
  ArgumentReader reader(name, arguments);
  const bool result = found->second(interpreter, value, reader);
  reader.finish();
  return result;
}

}  // namespace nvllm::jinja
