// Strings as Python has them: sequences of characters, here in UTF-8; and formatting of values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/value.h"

namespace nvllm::jinja {

std::size_t length_of(std::string_view text);  // in characters
std::vector<std::string_view> split_characters(std::string_view text);
// `count` characters from character `from` on; fewer where the text ends.
std::string_view characters(std::string_view text, std::size_t from, std::size_t count = SIZE_MAX);

bool is_space(char32_t c);  // as str.isspace has it
enum class Side : unsigned char { left, right, both };
// Without the characters of `set` (empty: white space) at its ends.
std::string_view stripped(std::string_view text, std::string_view set, Side side);

std::string lower(std::string_view text);
std::string upper(std::string_view text);  // of Latin, Greek and Cyrillic letters
std::string swapped_case(std::string_view text);
std::string capitalized(std::string_view text);
std::string titled(std::string_view text);
// There are letters with case, and all are in this one.
bool is_lower(std::string_view text);
bool is_upper(std::string_view text);

// The number that up to nine digits, and nothing else, make.
std::optional<std::int64_t> small_index(std::string_view text);

// limit: at most so many cuts; negative: any number.
std::vector<std::string_view> split_at(std::string_view text, std::string_view separator,
                                       std::int64_t limit);
std::vector<std::string_view> split_at_last(std::string_view text, std::string_view separator,
                                            std::int64_t limit);
std::vector<std::string_view> split_words(std::string_view text, std::int64_t limit);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);
std::string replaced(Interpreter& interpreter, std::string_view text, std::string_view what,
                     std::string_view with, std::int64_t limit);

// Values written into texts by a format (format.cc).

// format % values, as in Python: %s %r %d %i %f %e %g %x %o %c %% with flags, width and precision.
Value percent_format(Interpreter& interpreter, std::string_view format, const Value& values);
// format.format(...): {} {0} {name} {{ }}, without formats behind a colon but for .Nf, d and s.
std::string brace_format(Interpreter& interpreter, std::string_view format,
                         const Arguments& arguments);

// strftime of the local time now.
std::string time_text(const std::string& format);

}  // namespace nvllm::jinja
