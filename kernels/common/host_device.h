// Code that runs on the CPU and on the GPU: NVLLM_HOST_DEVICE marks such functions, and RandomKeys
// is the hash behind random_fill() and the Gumbel noise of sampling, the same on every device.
#pragma once

#include <cstdint>

#include "base/math.h"

#ifdef __CUDACC__
#define NVLLM_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define NVLLM_HOST_DEVICE inline
#endif

namespace nvllm::kernels {

// The random bits of element `index` are the lower half of the index, mixed with two keys that come
// from the seed and the upper half. This takes only 32-bit arithmetic, for vectors of any width.
struct RandomKeys {
  static constexpr std::uint32_t kFactor1 = 0x9e3779b1, kFactor2 = 0x85ebca6b;
  static constexpr float kUnit = 0x1p-23f;  // the unit of 24 bits with a sign

  std::uint32_t first, second;

  NVLLM_HOST_DEVICE constexpr RandomKeys(std::uint64_t seed, std::uint64_t block) {
    const std::uint64_t key = split_mix(split_mix(seed) + block);
    first = static_cast<std::uint32_t>(key);
    second = static_cast<std::uint32_t>(key >> 32);
  }

  NVLLM_HOST_DEVICE constexpr std::uint32_t bits(std::uint32_t low) const {
    const std::uint32_t x = unfolded(premixed(low));
    return x ^ x >> 15;
  }
  // The two steps of bits(), for callers that make many at once. premixed(low ^ i) is premixed(low)
  // ^ i for i below 2^16. unfolded() has the upper bits of the result already, all but the lower
  // kUnfolded.
  static constexpr int kUnfolded = 17;
  NVLLM_HOST_DEVICE constexpr std::uint32_t premixed(std::uint32_t low) const {
    const std::uint32_t x = low ^ first;
    return x ^ x >> 16;
  }
  NVLLM_HOST_DEVICE constexpr std::uint32_t unfolded(std::uint32_t premixed) const {
    const std::uint32_t x = premixed * kFactor1;
    return (x ^ x >> 15 ^ second) * kFactor2;
  }

  // In [-1, 1), exactly: the upper 24 bits as a number with a sign.
  NVLLM_HOST_DEVICE constexpr float unit(std::uint32_t low) const {
    return static_cast<float>(static_cast<std::int32_t>(bits(low)) >> 8) * kUnit;
  }
};

}  // namespace nvllm::kernels
