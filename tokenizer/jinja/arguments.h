// Taking a call's arguments one by one, for filters, tests and methods.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tokenizer/jinja/value.h"

namespace nvllm::jinja {

// The parameters are asked for in their order; who gets what follows Python. What is taken leaves the
// arguments; finish() refuses the rest.
class ArgumentReader {
 public:
  ArgumentReader(std::string_view function, Arguments& arguments)
      : function_(function), arguments_(arguments) {}

  bool next_is_given(std::string_view name) const {
    return next_ < arguments_.positional.size() || named(name) != arguments_.named.end();
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
  std::string take_text(std::string_view name, std::string fallback) {
    std::optional<Value> value = find(name);
    return !value || value->none() ? std::move(fallback) : text(name, *value);
  }
  std::int64_t take_integer(std::string_view name, std::int64_t fallback) {
    std::optional<Value> value = find(name);
    if (!value || value->none()) return fallback;
    std::int64_t place = 0;
    const std::int64_t* whole = value->integer(place);
    if (whole == nullptr)
      fail(function_, ": '", name, "' takes an integer, not ", value->type_name());
    return *whole;
  }
  bool take_truth(std::string_view name, bool fallback) {
    std::optional<Value> value = find(name);
    return value ? value->truth() : fallback;
  }

  void finish() const {
    if (next_ < arguments_.positional.size()) fail(function_, ": too many arguments");
    if (!arguments_.named.empty()) {
      fail(function_, ": unknown or repeated argument '", arguments_.named.front().first, "'");
    }
  }

 private:
  std::vector<std::pair<std::string, Value>>::iterator named(std::string_view name) const {
    return std::find_if(arguments_.named.begin(), arguments_.named.end(),
                        [&](const auto& argument) { return argument.first == name; });
  }
  std::optional<Value> find(std::string_view name) {
    if (next_ < arguments_.positional.size()) return arguments_.positional[next_++];
    const auto found = named(name);
    if (found == arguments_.named.end()) return std::nullopt;
    Value value = std::move(found->second);
    arguments_.named.erase(found);
    return value;
  }
  std::string text(std::string_view name, const Value& value) const {
    if (value.string() == nullptr)
      fail(function_, ": '", name, "' takes a string, not ", value.type_name());
    return *value.string();
  }

  std::string_view function_;
  Arguments& arguments_;
  std::size_t next_ = 0;  // of the positional ones
};

}  // namespace nvllm::jinja
