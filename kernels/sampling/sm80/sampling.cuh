// Shared by the sampling kernels on the GPU: loads of logits at any alignment, reductions, sums in
// bins, the bound of Gumbel noise, and the final step for a row's best candidate.
#pragma once

#include <cstdint>

#include "kernels/common/sm80/launch.cuh"
#include "kernels/sampling/sampling.h"
#include "kernels/sampling/sampling_steps.h"

namespace nvllm::kernels {

inline constexpr unsigned kAllLanes = 0xffffffffu;

// Stands for a missing logit: NaN.
__device__ __forceinline__ float no_logit() {
  return __uint_as_float(0x7fffffff);
}

// Four logits of a row from element i on; those from `count` on are NaN.
__device__ __forceinline__ float4 load_logits(const float* row, long long i, long long count) {
  const float* from = row + i;
  if (i + 4 <= count && (reinterpret_cast<std::uintptr_t>(from) & 15) == 0) {
    return *reinterpret_cast<const float4*>(from);
  }
  const float none = no_logit();
  return {i < count ? from[0] : none, i + 1 < count ? from[1] : none,
          i + 2 < count ? from[2] : none, i + 3 < count ? from[3] : none};
}

__device__ __forceinline__ float element(const float4& vector, int i) {
  return i == 0 ? vector.x : i == 1 ? vector.y : i == 2 ? vector.z : vector.w;
}

struct Larger {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return b > a ? b : a;
  }
};
struct Sum {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};

// Reduces over the warp's lanes; the result is in all of them.
template <typename T, typename Combine>
__device__ __forceinline__ T over_warp(T value, const Combine& combine) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// Reduces over the block's threads in a fixed order; the result is in all of them. The block
// consists of whole warps. `scratch`: one element per warp plus one.
template <typename T, typename Combine>
__device__ __forceinline__ T over_block(T value, const Combine& combine, T* scratch) {
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
  value = over_warp(value, combine);
  __syncthreads();  // the previous contents of scratch may still be read
  if (threadIdx.x % 32 == 0) scratch[warp] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    T all = scratch[0];
    for (int w = 1; w < warps; ++w) all = combine(all, scratch[w]);
    scratch[warps] = all;
  }
  __syncthreads();
  return scratch[warps];
}

// 64-bit counters in shared memory, as two of 32 bits each, for which shared memory has atomic
// adds.
template <int kBins>
struct SharedSums {
  unsigned low[kBins], high[kBins];

  __device__ void add(unsigned bin, std::uint64_t amount) {
    const auto lower = static_cast<unsigned>(amount);
    auto upper = static_cast<unsigned>(amount >> 32);
    if (lower != 0) upper += atomicAdd(low + bin, lower) + lower < lower;
    if (upper != 0) atomicAdd(high + bin, upper);
  }
  __device__ unsigned long long at(int bin) const {
    return static_cast<unsigned long long>(high[bin]) << 32 | low[bin];
  }
};

namespace cuda {

// An upper bound of the Gumbel noise of premixed bits, at most kMaxGumbel: -ln v (sampling_math.h)
// from the upper 15 bits.
__device__ __forceinline__ float gumbel_noise_bound(const RandomKeys& noise,
                                                    std::uint32_t premixed) {
  constexpr int kLower = RandomKeys::kUnfolded;
  constexpr float kLn2 = 0.693147181f;
  float log2;
  asm("lg2.approx.ftz.f32 %0, %1;"
      : "=f"(log2)
      : "f"(static_cast<float>(noise.unfolded(premixed) >> kLower) + 0x1p-18f));
  return fused(log2, -kLn2, kLn2 * (32 - kLower) + 1e-4f);
}

}  // namespace cuda
}  // namespace nvllm::kernels
