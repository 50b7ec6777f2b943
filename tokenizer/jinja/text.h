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
inline constexpr std::size_t kSetWork = 128;  // for each byte of a set, which is sorted
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

// The first and the last place of `what`, in time linear in both; npos: there is none.
std::size_t find_text(std::string_view text, std::string_view what, std::size_t from = 0);
std::size_t find_last_text(std::string_view text, std::string_view what);

// limit: at most so many cuts; negative: any number. The parts are charged as values, since they
// become some.
std::vector<std::string_view> split_at(Interpreter& interpreter, std::string_view text,
                                       std::string_view separator, std::int64_t limit);
std::vector<std::string_view> split_at_last(Interpreter& interpreter, std::string_view text,
                                            std::string_view separator, std::int64_t limit);
std::vector<std::string_view> split_words(Interpreter& interpreter, std::string_view text,
                                          std::int64_t limit);
std::vector<std::string_view> split_lines(Interpreter& interpreter, std::string_view text,
                                          bool keep_ends);

// --- texts that keep their marks (tokenizer/marked_text.h)

// A string as it is, of another value its text.
Value as_text(const Value& value);
// `view`: of the bytes of text.string().
Value part_of_text(const Value& text, std::string_view view);
Value replaced(Interpreter& interpreter, const Value& text, std::string_view what,
               const Value& with, std::int64_t limit);
// Texts with a separator between them.
Value joined(Interpreter& interpreter, const std::vector<Value>& texts, const Value& separator);
// `fill` repeated around the text, `side` of which it stands, up to a width in characters.
Value justified(Interpreter& interpreter, const Value& text, std::int64_t width, const Value& fill,
                Side side);

// Values written into texts by a format (format.cc).

// format % values, as in Python: %s %r %d %i %f %e %g %x %o %c %% with flags, width and precision.
// `format`: a string.
Value percent_format(Interpreter& interpreter, const Value& format, const Value& values);
// format.format(...): {} {0} {name} {{ }}, without formats behind a colon but for .Nf, d and s.
Value brace_format(Interpreter& interpreter, const Value& format, const Arguments& arguments);

// strftime of the local time now.
std::string time_text(const std::string& format);

}  // namespace nvllm::jinja
