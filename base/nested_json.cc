#include "base/nested_json.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace nvllm {

nlohmann::json parse_nested_json(std::string_view text, const std::string& where) {
  using Json = nlohmann::json;
  return Json::parse(text, [&](int depth, Json::parse_event_t, const Json&) {
    if (depth > kMaxJsonDepth) fail(where, ": nested deeper than ", kMaxJsonDepth, " levels");
    return true;
  });
}

}  // namespace nvllm
