// Stages of weights and x in shared memory, and their multiplication by a warpgroup (sm_90a), for
// the small-M GEMM and the LM head. The weight is operand A, so that few rows are few columns.
#pragma once

#include "kernels/common/sm90/wgmma.cuh"

namespace nvllm::kernels::cuda::staged {

// A stage holds this many inputs of the outputs' weights, then of the rows of x, as bulk copies
// with a 128-byte swizzle write them.
inline constexpr int kStageInputs = 64;
inline constexpr int kRowBytes = kStageInputs * 2;
inline constexpr int kAlignment = 1024;
inline constexpr int kTileOutputs = 64;  // of a warpgroup

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Starts a group of wgmma of a warpgroup's weights and x; step 0 initializes the sums, others add
// to them.
template <typename T, int N>
__device__ __forceinline__ void multiply(float (&sums)[N], std::uint64_t weights, std::uint64_t x,
                                         int step) {
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kStageInputs / 16; ++k) {
    wgmma<T>(sums, advance_descriptor(weights, k * 32), advance_descriptor(x, k * 32),
             step > 0 || k > 0);
  }
  wgmma_commit();
}

#endif

}  // namespace nvllm::kernels::cuda::staged
