// JSON from text and into text. nlohmann's reader and writer are large templates, so they are
// compiled once, here, and called from everywhere else.
#pragma once

#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace nvllm {

// These throw nlohmann::json::parse_error, which says what is wrong and where.
nlohmann::json parse_json(std::string_view text);
nlohmann::json read_json(std::istream& text);
nlohmann::ordered_json parse_ordered_json(std::string_view text);

// On one line, or with `indent` more spaces for each level. Bytes that are not UTF-8 become U+FFFD.
std::string json_text(const nlohmann::json& json, int indent = -1);
std::string json_text(const nlohmann::ordered_json& json, int indent = -1);
// On one line, in ASCII: all other characters are escaped.
std::string json_ascii(const nlohmann::json& json);

}  // namespace nvllm
