// The functions of the interpreter: operators, and functions that templates call by name.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/value.h"

namespace nvllm::jinja {

// Reads the arguments of a call one by one, for filters, tests and methods. Parameters are read in
// order and matched with arguments as in Python. finish() rejects remaining arguments.
class ArgumentReader {
 public:
  ArgumentReader(std::string_view function, Arguments& arguments)
      : function_(function), arguments_(arguments) {}

  bool next_is_given(std::string_view name) const {
    return next_ < arguments_.positional.size() || arguments_.find(name) != arguments_.named.end();
  }

  Value take(std::string_view name) {
    std::optional<Value> value = find(name);
    if (!value) fail(function_, ": the argument '", name, "' is missing");
    return *std::move(value);
  }
  Value take(std::string_view name, Value fallback) {
    std::optional<Value> value = find(name);
    return std::move(value).value_or(std::move(fallback));
  }
  std::string take_text(std::string_view name) { return text(name, take(name)); }
  // The same, with marks.
  Value take_string(std::string_view name, std::optional<std::string> fallback = std::nullopt) {
    std::optional<Value> value = find(name);
    if (fallback && (!value || value->none())) return *std::move(fallback);
    if (!value) fail(function_, ": the argument '", name, "' is missing");
    require_text(name, *value);
    return *std::move(value);
  }
  std::string take_text(std::string_view name, std::string fallback) {
    std::optional<Value> value = find(name);
    return !value || value->none() ? std::move(fallback) : text(name, *value);
  }
  std::int64_t take_integer(std::string_view name, std::int64_t fallback) {
    std::optional<Value> value = find(name);
    if (!value || value->none()) return fallback;
    const auto whole = value->integer();
    if (!whole) fail(function_, ": '", name, "' takes an integer, not ", value->type_name());
    return *whole;
  }
  bool take_truth(std::string_view name, bool fallback) {
    std::optional<Value> value = find(name);
    return value ? value->truth() : fallback;
  }

  // Whether any text in the arguments has marks; and their total weight.
  Extent extent() const {
    Extent all{.weight = 0};
    for (const Value& value : arguments_.positional) all.add(value);
    for (const auto& [name, value] : arguments_.named) all.add(value);
    return all;
  }

  void finish() const {
    if (next_ < arguments_.positional.size()) fail(function_, ": too many arguments");
    if (!arguments_.named.empty()) {
      fail(function_, ": unknown or repeated argument '", arguments_.named.front().first, "'");
    }
  }

 private:
  std::optional<Value> find(std::string_view name) {
    if (next_ < arguments_.positional.size()) return arguments_.positional[next_++];
    const auto found = arguments_.find(name);
    if (found == arguments_.named.end()) return std::nullopt;
    Value value = std::move(found->second);
    arguments_.named.erase(found);
    return value;
  }
  void require_text(std::string_view name, const Value& value) const {
    if (value.string() == nullptr)
      fail(function_, ": '", name, "' takes a string, not ", value.type_name());
  }
  std::string text(std::string_view name, const Value& value) const {
    require_text(name, value);
    return *value.string();
  }

  std::string_view function_;
  Arguments& arguments_;
  std::size_t next_ = 0;  // of the positional ones
};

// --- operators and subscripts (operations.cc). Errors name the operation and the types.

Value arithmetic(Interpreter& interpreter, std::string_view operation, const Value& a,
                 const Value& b);
Value negated(const Value& value);
bool contains(Interpreter& interpreter, const Value& container, const Value& item);

// a.name and a[key]: Jinja looks up attributes and items, in this or the other order. Undefined if
// there is neither; an Error if `value` itself is undefined.
Value attribute(Interpreter& interpreter, const Value& value, const std::string& name);
Value subscript(Interpreter& interpreter, const Value& value, const Value& key);
// Charge for looking up a key in a dict, and for comparing two values.
void charge_find(Interpreter& interpreter, const Value& key);
void charge_comparison(Interpreter& interpreter, const Value& a, const Value& b);
Value slice(Interpreter& interpreter, const Value& value, const Value& from, const Value& to,
            const Value& step);

// The items of a loop over the value: items, keys, characters; none for an undefined value.
std::vector<Value> items_of(Interpreter& interpreter, const Value& value);
List pairs_of(Interpreter& interpreter, const Dict& dict);  // tuples (key, value)

// A bound method of a string, list or dict, if there is one with this name (methods.cc).
std::optional<Value> method_of(const Value& value, const std::string& name);

// The result of an operation that creates text from other text: charged for, and marked if that
// was.
Value made_anew(Interpreter& interpreter, Value result, bool marked);

// "variable 'x' is undefined"
[[noreturn]] void fail_undefined(const Value& value);

// --- filters (filters.cc), tests and global functions (functions.cc)

bool has_filter(const std::string& name);
Value run_filter(Interpreter& interpreter, const std::string& name, const Value& input,
                 Arguments& arguments);

bool has_test(const std::string& name);
bool run_test(Interpreter& interpreter, const std::string& name, const Value& value,
              Arguments& arguments);

// range, dict, namespace, joiner, raise_exception, strftime_now.
Dict global_functions();

// --- filters that use the items of a list, or a part of each (list_filters.cc)

// item.a.b, or item[3]
Value part_of(Interpreter& interpreter, const Value& item, const Value& path);

Value sorted(Interpreter& interpreter, const Value& value, ArgumentReader& arguments);
Value dict_sorted(Interpreter& interpreter, const Value& value, ArgumentReader& arguments);
Value grouped(Interpreter& interpreter, const Value& value, ArgumentReader& arguments);
Value unique(Interpreter& interpreter, const Value& value, ArgumentReader& arguments);
Value sum(Interpreter& interpreter, const Value& value, ArgumentReader& arguments);
// The maximum for a positive sign, the minimum for a negative one.
Value extreme(Interpreter& interpreter, const Value& value, ArgumentReader& arguments, int sign);

}  // namespace nvllm::jinja
