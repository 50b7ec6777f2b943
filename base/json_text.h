// JSON from text and into text. nlohmann's reader and writer are large templates: they are compiled here and
// called from everywhere else.
#pragma once

#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace nvllm {

// An nlohmann::json::parse_error says what is wrong where.
nlohmann::json parse_json(std::string_view text);
nlohmann::json read_json(std::istream& text);
nlohmann::ordered_json parse_ordered_json(std::string_view text);

// On one line, or with so many spaces more for each level. What is no UTF-8 is replaced by U+FFFD.
std::string json_text(const nlohmann::json& json, int indent = -1);
std::string json_text(const nlohmann::ordered_json& json, int indent = -1);
// On one line, in ASCII: everything else is escaped.
std::string json_ascii(const nlohmann::json& json);

}  // namespace nvllm
