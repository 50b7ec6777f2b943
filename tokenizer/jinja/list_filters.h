// Filters that look at the items of a list, or at a part of each.
#pragma once

#include "tokenizer/jinja/arguments.h"
#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/value.h"

namespace nvllm::jinja {

// item.a.b, or item[3]
Value part_of(const Value& item, const Value& path);

Value sorted(Interpreter& interpreter, const Value& value, ArgumentReader& arguments);
Value dict_sorted(Interpreter& interpreter, const Value& value, ArgumentReader& arguments);
Value grouped(Interpreter& interpreter, const Value& value, ArgumentReader& arguments);
Value unique(Interpreter& interpreter, const Value& value, ArgumentReader& arguments);
Value sum(Interpreter& interpreter, const Value& value, ArgumentReader& arguments);
// The largest for a positive sign, the smallest for a negative one.
Value extreme(Interpreter& interpreter, const Value& value, ArgumentReader& arguments, int sign);

}  // namespace nvllm::jinja
