// The values of fields in a request's body. Each read_value() throws an Error that says what the
// value is and what it must be; with_field() adds the field's name.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "launcher/serve/api/api_call.h"

namespace nvllm::launcher {

// Strings of a request, all together: they are searched for in every answer.
struct Texts {
  static constexpr std::size_t kMaxCount = 64;
  static constexpr std::size_t kMaxBytes = 4096;
  std::vector<std::string> items = {};
};

void read_value(const nlohmann::json& value, double& to);
void read_value(const nlohmann::json& value, bool& to);
void read_value(const nlohmann::json& value, std::uint64_t& to);  // negative ones wrap, as seeds do
void read_value(const nlohmann::json& value, std::int32_t& to);
void read_value(const nlohmann::json& value, std::string& to);
void read_value(const nlohmann::json& value, Texts& to);  // a string, or a list of some
void read_value(const nlohmann::json& value, std::vector<std::int32_t>& to);  // token ids
void read_value(const nlohmann::json& value,
                std::vector<std::pair<std::int32_t, float>>& to);  // {"7": -100}

template <typename Value>
void read_value(const nlohmann::json& value, std::optional<Value>& to) {
  Value inner{};
  read_value(value, inner);
  to = std::move(inner);
}

// Throws an ApiError of status 400 about this field for an Error inside.
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
