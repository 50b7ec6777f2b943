#include "launcher/serve/api/request_body.h"

#include <nlohmann/json.hpp>

#include "base/bounded_json.h"
#include "launcher/serve/api/api_call.h"
#include "launcher/session/request_fields.h"

namespace nvllm::launcher {

nlohmann::json parse_body(std::string_view body) {
  nlohmann::json json;
  try {
    json = read_bounded_json(body, {});
  } catch (const BadJson& error) {
    const std::string& field = error.field();
    throw ApiError(400, str(field.empty() ? "the body" : shown(field), ": ", error.what()), field);
  }
  if (!json.is_object()) {
    throw ApiError(400, str("the body holds ", shown(json), ", not an object"));
  }
  return json;
}

void read_value(const nlohmann::json& value, Texts& to) {
  if (value.is_array() && value.size() > Texts::kMaxCount) {
    fail(value.size(), " strings: at most ", Texts::kMaxCount, " are allowed");
  }
  to.items = read_texts(value);
  std::size_t bytes = 0;
  for (const std::string& text : to.items) bytes += text.size();
  if (bytes > Texts::kMaxBytes) {
    fail(bytes, " bytes of strings: at most ", Texts::kMaxBytes, " are allowed");
  }
}

}  // namespace nvllm::launcher
