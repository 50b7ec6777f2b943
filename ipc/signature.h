// What a method's argument types are called, so that caller and callee can compare them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace nvllm::ipc {

// The type in which an argument arrives: text of any kind as string, a span as vector.
template <typename T>
struct Canonical {
  using type = std::conditional_t<std::is_convertible_v<T, std::string_view>, std::string, T>;
};
template <typename T, std::size_t N>
struct Canonical<std::span<T, N>> {
  using type = std::vector<std::remove_cv_t<T>>;
};
template <typename T>
using CanonicalType = typename Canonical<std::decay_t<T>>::type;

// The compiler's name for T.
template <typename T>
constexpr std::string_view type_name() {
  if constexpr (std::is_same_v<T, std::string>) {
    return "string";
  } else {
    const std::string_view text =
        __PRETTY_FUNCTION__;  // "... [with T = int; ...]", "... [T = int]"
    const std::size_t start = text.find("T = ") + 4;
    const std::size_t semicolon = text.find(';', start);
    return text.substr(start, std::min(semicolon, text.size() - 1) - start);
  }
}

// "(int, string)"
template <typename... Args>
std::string signature_text() {
  std::string text = "(";
  [[maybe_unused]] const char* separator = "";
  ((text.append(separator).append(type_name<CanonicalType<Args>>()), separator = ", "), ...);
  return text + ")";
}

// FNV-1a of that.
template <typename... Args>
constexpr std::uint64_t signature_hash() {
  std::uint64_t hash = 14695981039346656037U;
  [[maybe_unused]] const auto mix = [&hash](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
    hash = (hash ^ 0xffU) * 1099511628211U;
  };
  (mix(type_name<CanonicalType<Args>>()), ...);
  return hash;
}

}  // namespace nvllm::ipc
