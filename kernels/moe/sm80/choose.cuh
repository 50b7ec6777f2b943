// How a warp chooses the experts of a row.
#pragma once

#include "kernels/common/sm80/types.cuh"

namespace nvllm::kernels::cuda {

inline constexpr unsigned kChosenKey = 0, kNanKey = 1;

// Greater for greater logits; those of numbers are greater than kNanKey.
__device__ __forceinline__ unsigned key_of(float logit) {
  if (isnan(logit)) return kNanKey;
  const unsigned bits = __float_as_uint(logit + 0.0f);  // -0 counts as 0
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float logit_of(unsigned key) {
  return __uint_as_float(key >> 31 != 0 ? key & 0x7fffffffu : ~key);
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(~0u, value, lanes);
  return value;
}

// By one warp, whose lanes hold the row's logits as keys that sort like them, every 32nd, and take
// the largest k times: put(j, e^(logit - largest), expert), the largest first, by all lanes.
// Returns what these powers are to be divided by. kPerLane: logits of a lane, which are read past
// the L1: a kernel may have read older ones before.
template <int kPerLane, typename Put>
__device__ __forceinline__ float choose_experts(const float* logits, int experts, int k,
                                                bool renormalize, const Put& put) {
  const int lane = threadIdx.x % 32;
  unsigned keys[kPerLane];
  unsigned best = 0;
  bool has_nan = false;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = i * 32 + lane;
    keys[i] = expert < experts ? key_of(__ldcg(logits + expert)) : kChosenKey;
    has_nan = has_nan || keys[i] == kNanKey;
    best = max(best, keys[i]);
  }
  const float top = logit_of(__reduce_max_sync(~0u, best));
  float all = has_nan ? __int_as_float(0x7fffffff) : 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (keys[i] > kNanKey) all += expf(logit_of(keys[i]) - top);
  }
  all = warp_sum(all);

  float some = 0;
  for (int j = 0; j < k; ++j) {
    unsigned key = 0;
    int expert = kPerLane * 32;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (keys[i] > key) key = keys[i], expert = i * 32 + lane;
    }
    const unsigned largest = __reduce_max_sync(~0u, key);
    const unsigned mine = key == largest ? static_cast<unsigned>(expert) : ~0u;
    const auto winner = static_cast<int>(__reduce_min_sync(~0u, mine));
    const float power = expf(logit_of(largest) - top);
    some += power;
    put(j, power, winner);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (i * 32 + lane == winner) keys[i] = kChosenKey;
    }
  }
  // NaN of a logit that was not chosen must show, too.
  return renormalize && !isnan(all) ? some : all;
}

}  // namespace nvllm::kernels::cuda
