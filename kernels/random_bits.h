// The hash behind random_fill(), for every device.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define NVLLM_ON_BOTH __host__ __device__
#else
#define NVLLM_ON_BOTH
#endif

namespace nvllm::kernels {

// Element `index` of a seed takes its bits from the lower half of its index, mixed with two keys that
// the seed and the upper half give: 32-bit arithmetic alone, for lanes of any width.
struct RandomKeys {
  static constexpr std::uint32_t kFactor1 = 0x9e3779b1, kFactor2 = 0x85ebca6b;
  static constexpr float kUnit = 0x1p-23f;  // what 24 bits with a sign count in

  std::uint32_t first, second;

  NVLLM_ON_BOTH constexpr RandomKeys(std::uint64_t seed, std::uint64_t block) {
    const std::uint64_t key = mixed(mixed(seed) + block);
    first = static_cast<std::uint32_t>(key);
    second = static_cast<std::uint32_t>(key >> 32);
  }

  NVLLM_ON_BOTH constexpr std::uint32_t bits(std::uint32_t low) const {
    std::uint32_t x = low ^ first;
    x = (x ^ x >> 16) * kFactor1;
    x = (x ^ x >> 15 ^ second) * kFactor2;
    return x ^ x >> 15;
  }

  // In [-1, 1), exactly: the upper 24 bits as a number with a sign.
  NVLLM_ON_BOTH constexpr float unit(std::uint32_t low) const {
    return static_cast<float>(static_cast<std::int32_t>(bits(low)) >> 8) * kUnit;
  }

 private:
  // SplitMix64's step.
  NVLLM_ON_BOTH static constexpr std::uint64_t mixed(std::uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
  }
};

}  // namespace nvllm::kernels

#undef NVLLM_ON_BOTH
