// The JSON body of a request, within the limits of bounded_json.h; values that only occur in the
// server's bodies, besides those of request_fields.h; and errors that name their field.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "launcher/serve/api/api_call.h"
#include "launcher/session/request_fields.h"

namespace nvllm::launcher {

// Parses an object. Throws an ApiError with the field where the text is invalid (see
// bounded_json.h).
nlohmann::json parse_body(std::string_view body);

// All strings of a request that are searched for in every answer.
struct Texts {
  static constexpr std::size_t kMaxCount = 64;
  static constexpr std::size_t kMaxBytes = 4096;
  std::vector<std::string> items = {};
};

void read_value(const nlohmann::json& value, Texts& to);  // a string, or a list of some

// Converts an Error of the function to an ApiError of status 400 about this field.
template <typename Function>
decltype(auto) with_field(std::string_view name, Function&& function) {
  try {
    return std::forward<Function>(function)();
  } catch (const ApiError&) {
    throw;
  } catch (const Error& error) {
    throw ApiError(400, str(name, ": ", error.what()), std::string(name));
  }
}

}  // namespace nvllm::launcher
