// What templates can call by name: filters, tests and global functions.
#pragma once

#include <string>

#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/value.h"

namespace nvllm::jinja {

bool has_filter(const std::string& name);
Value run_filter(Interpreter& interpreter, const std::string& name, const Value& input,
                 Arguments& arguments);

bool has_test(const std::string& name);
bool run_test(Interpreter& interpreter, const std::string& name, const Value& value,
              Arguments& arguments);

// range, dict, namespace, joiner, cycler, raise_exception, strftime_now.
Dict global_functions();

}  // namespace nvllm::jinja
