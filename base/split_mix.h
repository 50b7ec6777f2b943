// SplitMix64: one well-mixed number out of another, for seeds, hashes and reproducible values.
#pragma once

#include <cstdint>

namespace nvllm {

inline constexpr std::uint64_t kSplitMixStep = 0x9e3779b97f4a7c15;

// Of split_mix(x), split_mix(x + kSplitMixStep), ... every number comes once.
constexpr std::uint64_t split_mix(std::uint64_t x) {
  x += kSplitMixStep;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

}  // namespace nvllm
