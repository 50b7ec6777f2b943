// Values written into texts by a format.
#pragma once

#include <string>
#include <string_view>

#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/value.h"

namespace nvllm::jinja {

// format % values, as Python has it: %s %r %d %i %f %e %g %x %o %c %%, with flags, width and precision.
Value percent_format(Interpreter& interpreter, std::string_view format, const Value& values);
// format.format(...): {} {0} {name} {{ }}, without formats behind a colon but for .Nf, d and s.
std::string brace_format(Interpreter& interpreter, std::string_view format,
                         const Arguments& arguments);

// strftime of the local time now.
std::string time_text(const std::string& format);

}  // namespace nvllm::jinja
