// The body of a request as JSON, within the bounds of bounded_json.h.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace nvllm::launcher {

// An object. Throws an ApiError with the field in which the text is wrong, as bounded_json.h says.
nlohmann::json parse_body(std::string_view body);

}  // namespace nvllm::launcher
