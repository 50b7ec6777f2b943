#include "base/json_text.h"

#include <istream>
#include <nlohmann/json.hpp>

namespace nvllm {

using nlohmann::json;
using nlohmann::ordered_json;

json parse_json(std::string_view text) {
  return json::parse(text);
}

json read_json(std::istream& text) {
  return json::parse(text);
}

ordered_json parse_ordered_json(std::string_view text) {
  return ordered_json::parse(text);
}

std::string json_text(const json& value, int indent) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

std::string json_text(const ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

std::string json_ascii(const json& value) {
  return value.dump(-1, ' ', true, json::error_handler_t::replace);
}

}  // namespace nvllm
