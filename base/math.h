// Integer arithmetic: division rounded up, and SplitMix64.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

namespace nvllm {

// a / b, rounded up. No argument is negative.
template <std::integral T>
constexpr T divide_up(T a, std::type_identity_t<T> b) {
  return a / b + (a % b == 0 ? 0 : 1);
}

// The smallest multiple of `step` that is not below `value`. No argument is negative.
template <std::integral T>
constexpr T round_up(T value, std::type_identity_t<T> step) {
  return divide_up(value, step) * step;
}

inline constexpr std::uint64_t kSplitMixStep = 0x9e3779b97f4a7c15;

// SplitMix64: a well-mixed function of a number, for seeds, hashes and reproducible values. The
// sequence split_mix(x), split_mix(x + kSplitMixStep), ... contains every 64-bit number once.
constexpr std::uint64_t split_mix(std::uint64_t x) {
  x += kSplitMixStep;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

}  // namespace nvllm
