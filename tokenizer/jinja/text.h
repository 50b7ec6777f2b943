// Python's strings: sequences of characters, here in UTF-8; and formatting of values.
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
// `count` characters from character `from` on; fewer if the text ends.
std::string_view characters(std::string_view text, std::size_t from, std::size_t count = SIZE_MAX);

bool is_space(char32_t c);  // as str.isspace has it
enum class Side : unsigned char { left, right, both };
inline constexpr std::size_t kSetWork = 128;  // per byte of a set, which is sorted
// Strips the characters of `set` (empty: white space) from its ends.
std::string_view stripped(std::string_view text, std::string_view set, Side side);

std::string lower(std::string_view text);
std::string upper(std::string_view text);  // for Latin, Greek and Cyrillic letters
std::string swapped_case(std::string_view text);
std::string capitalized(std::string_view text);
std::string titled(std::string_view text);
// Whether there are cased letters, and all have this case.
bool is_lower(std::string_view text);
bool is_upper(std::string_view text);

// The value of a text of up to nine digits.
std::optional<std::int64_t> small_index(std::string_view text);

// The first and the last position of `what`, in time linear in both; npos: not found.
std::size_t find_text(std::string_view text, std::string_view what, std::size_t from = 0);
std::size_t find_last_text(std::string_view text, std::string_view what);

// limit: maximum number of splits; negative: unlimited. The parts are charged like values, which
// they become.
std::vector<std::string_view> split_at(Interpreter& interpreter, std::string_view text,
                                       std::string_view separator, std::int64_t limit);
std::vector<std::string_view> split_at_last(Interpreter& interpreter, std::string_view text,
                                            std::string_view separator, std::int64_t limit);
std::vector<std::string_view> split_words(Interpreter& interpreter, std::string_view text,
                                          std::int64_t limit);
std::vector<std::string_view> split_lines(Interpreter& interpreter, std::string_view text,
                                          bool keep_ends);

// --- texts that keep their marks (tokenizer/marked_text.h)

// A string unchanged, the text of another value.
Value as_text(const Value& value);
// `view`: a part of text.string().
Value part_of_text(const Value& text, std::string_view view);
Value replaced(Interpreter& interpreter, const Value& text, std::string_view what,
               const Value& with, std::int64_t limit);
// Texts with a separator between them.
Value joined(Interpreter& interpreter, const std::vector<Value>& texts, const Value& separator);
// Pads the text with `fill` to a width in characters; `side`: where the text is placed.
Value justified(Interpreter& interpreter, const Value& text, std::int64_t width, const Value& fill,
                Side side);

// Formatting values into texts (format.cc).

// format % values, as in Python: %s %r %d %i %f %e %g %x %o %c %% with flags, width and precision.
// `format`: a string.
Value percent_format(Interpreter& interpreter, const Value& format, const Value& values);
// format.format(...): {} {0} {name} {{ }}; after a colon only .Nf, d and s.
Value brace_format(Interpreter& interpreter, const Value& format, const Arguments& arguments);

// strftime of the current local time.
std::string time_text(const std::string& format);

}  // namespace nvllm::jinja
