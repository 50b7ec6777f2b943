// Parsing and formatting JSON. nlohmann's reader and writer are large templates, so they are
// compiled only once, here.
#pragma once

#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace nvllm {

// These throw nlohmann::json::parse_error, which describes the error and its position.
nlohmann::json parse_json(std::string_view text);
nlohmann::json read_json(std::istream& text);
nlohmann::ordered_json parse_ordered_json(std::string_view text);

// On one line, or with `indent` more spaces per level. Invalid UTF-8 becomes U+FFFD.
std::string json_text(const nlohmann::json& json, int indent = -1);
std::string json_text(const nlohmann::ordered_json& json, int indent = -1);
// On one line, in ASCII: all other characters are escaped.
std::string json_ascii(const nlohmann::json& json);

}  // namespace nvllm
