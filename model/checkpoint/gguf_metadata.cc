// GgufMetadata: the values of a GGUF file by their keys.
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "model/checkpoint/checkpoint_file.h"
#include "model/checkpoint/gguf.h"

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

void GgufMetadata::fail_kind(std::string_view key, std::string_view expected) const {
  fail(where_, ": metadata ", key, ": expected ", expected, ", found ", describe(*find(key)));
}

template <typename T>
const T* GgufMetadata::find_kind(std::string_view key, std::string_view expected) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return nullptr;
  if (const T* found = std::get_if<T>(value)) return found;
  fail_kind(key, expected);
}

template <typename T>
T GgufMetadata::required(std::string_view key, std::optional<T> value) const {
  if (!value) fail(where_, ": metadata ", key, " is missing");
  return *std::move(value);
}

std::optional<std::int64_t> GgufMetadata::integer(std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<std::int64_t>(value)) return *number;
  if (const auto* number = std::get_if<std::uint64_t>(value)) {
    if (std::in_range<std::int64_t>(*number)) return static_cast<std::int64_t>(*number);
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
  const auto* text = find_kind<std::string>(key, "a text");
  return text == nullptr ? std::nullopt : std::optional(*text);
}

std::optional<bool> GgufMetadata::flag(std::string_view key) const {
  const bool* flag = find_kind<bool>(key, "true or false");
  return flag == nullptr ? std::nullopt : std::optional(*flag);
}

bool GgufMetadata::has_array(std::string_view key) const {
  const GgufValue* const value = find(key);
  return value != nullptr && std::holds_alternative<GgufArray>(*value);
}

std::optional<std::vector<std::string>> GgufMetadata::texts(std::string_view key) const {
  const auto* array = find_kind<GgufArray>(key, "texts");
  if (array == nullptr) return std::nullopt;
  if (array->texts.size() != array->count) fail_kind(key, "texts");
  return array->texts;
}

std::optional<std::vector<double>> GgufMetadata::numbers(std::string_view key) const {
  const auto* array = find_kind<GgufArray>(key, "numbers");
  if (array == nullptr) return std::nullopt;
  if (array->numbers.size() != array->count) fail_kind(key, "numbers");
  return array->numbers;
}

std::int64_t GgufMetadata::required_integer(std::string_view key) const {
  return required(key, integer(key));
}

double GgufMetadata::required_number(std::string_view key) const {
  return required(key, number(key));
}

std::string GgufMetadata::required_text(std::string_view key) const {
  return required(key, text(key));
}

}  // namespace nvllm::model
