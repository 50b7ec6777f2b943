// What operators and subscripts do. Errors say what was done to what.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/value.h"

namespace nvllm::jinja {

Value arithmetic(Interpreter& interpreter, std::string_view operation, const Value& a,
                 const Value& b);
Value negated(const Value& value);
bool contains(Interpreter& interpreter, const Value& container, const Value& item);

// a.name and a[key]: Jinja looks for attributes and items, in this or the other order. Undefined if there
// is neither; an Error if `value` is undefined itself.
Value attribute(const Value& value, const std::string& name);
Value subscript(const Value& value, const Value& key);
Value slice(Interpreter& interpreter, const Value& value, const Value& from, const Value& to,
            const Value& step);

// What a loop over the value gives: items, keys, characters; of an undefined value nothing.
std::vector<Value> items_of(Interpreter& interpreter, const Value& value);

// A bound method of a string, list or dict, if there is one of this name (methods.cc).
std::optional<Value> method_of(const Value& value, const std::string& name);

// "variable 'x' is undefined"
[[noreturn]] void fail_undefined(const Value& value);

}  // namespace nvllm::jinja
