// JSON of strangers' files with a bound on its depth: without one, a file of brackets overflows the
// stack of who copies or prints the value.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace nvllm {

inline constexpr int kMaxJsonDepth = 32;  // of nested objects and lists in a configuration

// An Error with `where` if it is nested deeper. Otherwise throws nlohmann::json::exception, as
// parse_json() does.
nlohmann::json parse_nested_json(std::string_view text, const std::string& where);

}  // namespace nvllm
