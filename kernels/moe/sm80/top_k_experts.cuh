// Selects the experts of a row with one warp.
#pragma once

#include "kernels/common/sm80/types.cuh"

namespace nvllm::kernels::cuda {

inline constexpr unsigned kChosenKey = 0, kNanKey = 1;

// Order-preserving keys; keys of numbers are greater than kNanKey. Unlike the keys of sampling
// (order_key()) that of NaN is not 0, which marks a chosen expert here, and converts back to NaN.
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

// Called by one warp, whose lanes hold every 32nd logit of the row as an order-preserving key, and
// take the maximum k times: all lanes call put(j, e^(logit - largest), expert) in descending order.
// Returns the divisor of these exponentials. kPerLane: logits per lane, which are loaded past the
// L1, since it may hold stale ones.
template <int kPerLane, typename Put>
__device__ __forceinline__ float select_top_k_experts(const float* logits, int experts, int k,
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
    const float exp_logit = expf(logit_of(largest) - top);
    some += exp_logit;
    put(j, exp_logit, winner);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (i * 32 + lane == winner) keys[i] = kChosenKey;
    }
  }
  // A NaN among the logits that were not chosen must propagate, too.
  return renormalize && !isnan(all) ? some : all;
}

}  // namespace nvllm::kernels::cuda
