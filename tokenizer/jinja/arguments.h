// Taking a call's arguments one by one, for filters, tests and methods.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "tokenizer/jinja/value.h"

namespace nvllm::jinja {

// The parameters are asked for in their order; who gets what follows Python. finish() refuses the rest.
class ArgumentReader {
 public:
  ArgumentReader(std::string_view function, Arguments& arguments)
      : function_(function), arguments_(arguments) {}

  bool next_is_given(std::string_view name) const {
    return next_ < arguments_.positional.size() || named(name) != nullptr;
  }

  Value take(std::string_view name) {
    const Value* value = find(name);
    if (value == nullptr) fail(function_, ": the argument '", name, "' is missing");
    return *value;
  }
  Value take(std::string_view name, Value fallback) {
    const Value* value = find(name);
    if (value != nullptr) return *value;
    return fallback;
  }
  std::string take_text(std::string_view name) { return text(name, take(name)); }
  std::string take_text(std::string_view name, std::string fallback) {
    const Value* value = find(name);
    return value == nullptr || value->none() ? std::move(fallback) : text(name, *value);
  }
  std::int64_t take_integer(std::string_view name, std::int64_t fallback) {
    const Value* value = find(name);
    if (value == nullptr || value->none()) return fallback;
    std::int64_t place = 0;
    const std::int64_t* whole = value->integer(place);
    if (whole == nullptr)
      fail(function_, ": '", name, "' takes an integer, not ", value->type_name());
    return *whole;
  }
  bool take_truth(std::string_view name, bool fallback) {
    const Value* value = find(name);
    return value == nullptr ? fallback : value->truth();
  }

  void finish() const {
    if (next_ < arguments_.positional.size()) fail(function_, ": too many arguments");
    if (taken_ < arguments_.named.size())
      fail(function_, ": unknown or repeated argument '", unknown(), "'");
  }

 private:
  const Value* named(std::string_view name) const {
    for (const auto& [given, value] : arguments_.named) {
      if (given == name) return &value;
    }
    return nullptr;
  }
  const Value* find(std::string_view name) {
    known_ += name;
    known_ += ' ';
    if (next_ < arguments_.positional.size()) return &arguments_.positional[next_++];
    const Value* value = named(name);
    if (value != nullptr) ++taken_;
    return value;
  }
  std::string text(std::string_view name, const Value& value) const {
    if (value.string() == nullptr)
      fail(function_, ": '", name, "' takes a string, not ", value.type_name());
    return *value.string();
  }
  std::string unknown() const {
    for (const auto& [given, value] : arguments_.named) {
      if (known_.find(given + " ") == std::string::npos) return given;
    }
    return arguments_.named.back().first;
  }

  std::string_view function_;
  Arguments& arguments_;
  std::size_t next_ = 0;
  std::size_t taken_ = 0;  // of the named ones
  std::string known_;      // the parameters asked for so far
};

}  // namespace nvllm::jinja
