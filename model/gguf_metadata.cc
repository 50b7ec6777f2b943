#include <cmath>
#include <limits>

#include "base/error.h"
#include "model/gguf.h"
#include "model/stored_tensor.h"

namespace nvllm::model {
namespace {

std::string describe(const GgufValue& value) {
  struct Describe {
    std::string operator()(std::uint64_t number) const { return str(number); }
    std::string operator()(std::int64_t number) const { return str(number); }
    std::string operator()(double number) const { return str(number); }
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(const std::string& text) const { return '"' + printable(text) + '"'; }
    std::string operator()(const GgufArray& array) const {
      return str("an array of ", array.count);
    }
  };
  return std::visit(Describe{}, value);
}

}  // namespace

void GgufMetadata::insert(std::string key, GgufValue value) {
  const auto [at, is_new] = values_.try_emplace(std::move(key), std::move(value));
  if (!is_new) fail(where_, ": metadata ", printable(at->first), " is there twice");
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

void GgufMetadata::fail_missing(std::string_view key) const {
  fail(where_, ": metadata ", key, " is missing");
}

void GgufMetadata::fail_kind(std::string_view key, std::string_view expected) const {
  fail(where_, ": metadata ", key, ": expected ", expected, ", found ", describe(*find(key)));
}

std::optional<std::int64_t> GgufMetadata::integer(std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<std::int64_t>(value)) return *number;
  if (const auto* number = std::get_if<std::uint64_t>(value)) {
    constexpr auto kMost = std::uint64_t{std::numeric_limits<std::int64_t>::max()};
    if (*number <= kMost) return static_cast<std::int64_t>(*number);
  }
  fail_kind(key, "a whole number");
}

std::optional<double> GgufMetadata::number(std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<double>(value)) {
    if (std::isfinite(*number)) return *number;
  }
  if (const auto* number = std::get_if<std::int64_t>(value)) return static_cast<double>(*number);
  if (const auto* number = std::get_if<std::uint64_t>(value)) return static_cast<double>(*number);
  fail_kind(key, "a finite number");
}

std::optional<std::string> GgufMetadata::text(std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* text = std::get_if<std::string>(value)) return *text;
  fail_kind(key, "a text");
}

std::optional<bool> GgufMetadata::flag(std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* flag = std::get_if<bool>(value)) return *flag;
  fail_kind(key, "true or false");
}

std::optional<std::vector<std::string>> GgufMetadata::texts(std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto* array = std::get_if<GgufArray>(value);
  if (array == nullptr || array->texts.size() != array->count) fail_kind(key, "texts");
  return array->texts;
}

std::optional<std::vector<double>> GgufMetadata::numbers(std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto* array = std::get_if<GgufArray>(value);
  if (array == nullptr || array->numbers.size() != array->count) fail_kind(key, "numbers");
  return array->numbers;
}

std::int64_t GgufMetadata::required_integer(std::string_view key) const {
  const auto value = integer(key);
  if (!value) fail_missing(key);
  return *value;
}

double GgufMetadata::required_number(std::string_view key) const {
  const auto value = number(key);
  if (!value) fail_missing(key);
  return *value;
}

std::string GgufMetadata::required_text(std::string_view key) const {
  auto value = text(key);
  if (!value) fail_missing(key);
  return std::move(*value);
}

}  // namespace nvllm::model
