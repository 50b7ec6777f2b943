// Division of whole numbers, upwards. No argument is negative.
#pragma once

#include <concepts>
#include <type_traits>

namespace nvllm {

template <std::integral T>
constexpr T divide_up(T a, std::type_identity_t<T> b) {
  return a / b + (a % b == 0 ? 0 : 1);
}

// The least multiple of `step` that is not below `value`.
template <std::integral T>
constexpr T round_up(T value, std::type_identity_t<T> step) {
  return divide_up(value, step) * step;
}

}  // namespace nvllm
