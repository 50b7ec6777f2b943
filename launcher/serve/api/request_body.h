// The body of a request as JSON, with bounds on what it may cost.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace nvllm::launcher {

struct BodyLimits {
  static constexpr int kMaxDepth = 64;
  static constexpr std::size_t kMaxValues = std::size_t{1} << 21;  // numbers of a prompt, mostly
  static constexpr std::size_t kMaxKeys = 1024;                    // of one object
};

// An object. Throws an ApiError with the field in which the text is wrong: no JSON, not UTF-8, a
// number that no double holds, a name twice in an object, or more than the limits allow.
nlohmann::json parse_body(std::string_view body);

}  // namespace nvllm::launcher
