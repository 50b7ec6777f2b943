#include "launcher/serve/api/field_values.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "launcher/serve/api/request_body.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMaxInt = std::numeric_limits<std::int32_t>::max();

void read_token_id(const Json& value, std::int32_t& to) {
  if (!value.is_number_integer()) fail(shown(value), ": no token id");
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > std::uint64_t{kMaxInt}) {
    fail(shown(value), ": no token id; they are 0 or more");
  }
  to = value.get<std::int32_t>();
}

}  // namespace

void read_value(const Json& value, double& to) {
  if (!value.is_number()) fail(shown(value), ": not a number");
  to = value.get<double>();
}

void read_value(const Json& value, bool& to) {
  if (!value.is_boolean()) fail(shown(value), ": neither true nor false");
  to = value.get<bool>();
}

void read_value(const Json& value, std::uint64_t& to) {
  if (!value.is_number_integer()) fail(shown(value), ": not a whole number");
  to = value.is_number_unsigned() ? value.get<std::uint64_t>()
                                  : static_cast<std::uint64_t>(value.get<std::int64_t>());
}

void read_value(const Json& value, std::int32_t& to) {
  if (!value.is_number()) fail(shown(value), ": not a whole number");
  // Some clients have no other numbers than floating-point ones, and write 16.0.
  const double number = value.get<double>();
  if (number != std::floor(number)) fail(shown(value), ": not a whole number");
  if (std::abs(number) > static_cast<double>(kMaxInt)) {
    fail(shown(value), ": out of range; at most ", kMaxInt, " is allowed");
  }
  to = static_cast<std::int32_t>(number);
}

void read_value(const Json& value, std::string& to) {
  if (!value.is_string()) fail(shown(value), ": not a string");
  to = value.get_ref<const std::string&>();
}

void read_value(const Json& value, Texts& to) {
  to.items.clear();
  if (value.is_string()) {
    to.items = {value.get<std::string>()};
  } else if (value.is_array()) {
    if (value.size() > Texts::kMaxCount) {
      fail(value.size(), " strings: at most ", Texts::kMaxCount, " are allowed");
    }
    for (const Json& item : value) read_value(item, to.items.emplace_back());
  } else {
    fail(shown(value), ": neither a string nor a list of strings");
  }
  std::size_t bytes = 0;
  for (const std::string& text : to.items) bytes += text.size();
  if (bytes > Texts::kMaxBytes) {
    fail(bytes, " bytes of strings: at most ", Texts::kMaxBytes, " are allowed");
  }
}

void read_value(const Json& value, std::vector<std::int32_t>& to) {
  if (!value.is_array()) fail(shown(value), ": not a list of token ids");
  to.resize(value.size());
  for (std::size_t i = 0; i < to.size(); ++i) read_token_id(value[i], to[i]);
}

void read_value(const Json& value, std::vector<std::pair<std::int32_t, float>>& to) {
  constexpr double kMaxBias = 100;
  if (!value.is_object()) fail(shown(value), ": not an object such as {\"7\": -100}");
  to.clear();
  for (const auto& [key, item] : value.items()) {
    std::int32_t id = 0;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
    if (parsed.ec != std::errc{} || parsed.ptr != key.data() + key.size() || id < 0) {
      fail(shown(std::string_view(key)), ": no token id");
    }
    double bias = 0;
    read_value(item, bias);
    if (std::abs(bias) > kMaxBias) {
      fail(shown(item), " for token ", id, ": must be from -100 to 100");
    }
    to.emplace_back(id, static_cast<float>(bias));
  }
}

}  // namespace nvllm::launcher
