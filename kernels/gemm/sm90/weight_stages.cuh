// Stages of weights and x in shared memory, and what a warpgroup makes of one (sm_90a): what products of some rows and
// those with a vocabulary share. Weights are the left factor, so that few rows are few columns.
#pragma once

#include "kernels/common/sm90/wgmma.cuh"

namespace nvllm::kernels::cuda::staged {

// A stage has so many inputs of outputs' weights, then of rows of x, as bulk copies with a swizzle of 128 bytes write them.
inline constexpr int kStageInputs = 64;
inline constexpr int kRowBytes = kStageInputs * 2;
inline constexpr int kAlignment = 1024;
inline constexpr int kTileOutputs = 64;  // of a warpgroup

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A group of products on its way: of a warpgroup's weights and x, whose sums step 0 begins and others add to.
template <typename T, int N>
__device__ __forceinline__ void multiply(float (&sums)[N], std::uint64_t weights, std::uint64_t x,
                                         int step) {
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kStageInputs / 16; ++k) {
    wgmma<T>(sums, wgmma_factor_behind(weights, k * 32), wgmma_factor_behind(x, k * 32),
             step > 0 || k > 0);
  }
  wgmma_commit();
}

#endif

}  // namespace nvllm::kernels::cuda::staged
