// fp8 weights of the small-M GEMM (small_m.cuh) times rows of x in fp8 (Fp8Rows): tensor
// cores read both from shared memory. A stage is a group of 128 inputs. Its sums are scaled and
// accumulated in float32, since the tensor cores accumulate fp8 with about 14 bits.
#pragma once

#include "kernels/common/sm90/wgmma.cuh"
#include "kernels/gemm/quantized_weight.h"
#include "kernels/gemm/sm90/deferred_norm.cuh"
#include "kernels/gemm/sm90/weight_stages.cuh"

namespace nvllm::kernels::cuda::small_m {

template <typename T>
struct Fp8Weights {
  using Element = T;  // of everything else
  static constexpr Operands kOperands = Operands::fp8;
  static constexpr int kStageInputs = static_cast<int>(kFp8Group), kInputBytes = 1;
  static constexpr int kRowBytes = kStageInputs;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

  // Multiplies a stage of a warpgroup's outputs by kRows rows, and accumulates. row_scales: of the
  // stage's rows, in shared memory. output_scales: of this thread's two outputs.
  template <int kRows>
  static __device__ __forceinline__ void add(float (&sums)[kRows / 2], unsigned weights, unsigned x,
                                             unsigned row_scales, float2 output_scales) {
    constexpr int kPart = kRows < 64 ? kRows : 64;  // rows at a time, limited by registers
    const auto a = wgmma_descriptor(weights, 16, 1024);
#pragma unroll
    for (int first = 0; first < kRows; first += kPart) {
      const auto b = wgmma_descriptor(x + first * kRowBytes, 16, 1024);
      float part[kPart / 2];
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kStageInputs / 32; ++k)
        wgmma_e4m3(part, advance_descriptor(a, k * 32), advance_descriptor(b, k * 32), k > 0);
      wgmma_commit();
      wgmma_wait<0>();
      hold(part);
#pragma unroll
      for (int quad = 0; quad < kPart / 8; ++quad) {
        const float2 scales =
            load_shared_pair(row_scales + (first + quad * 8 + threadIdx.x % 4 * 2) * 4);
        float* const to = sums + first / 2 + quad * 4;
        to[0] = fmaf(part[quad * 4], scales.x * output_scales.x, to[0]);
        to[1] = fmaf(part[quad * 4 + 1], scales.y * output_scales.x, to[1]);
        to[2] = fmaf(part[quad * 4 + 2], scales.x * output_scales.y, to[2]);
        to[3] = fmaf(part[quad * 4 + 3], scales.y * output_scales.y, to[3]);
      }
    }
  }

#endif
};

}  // namespace nvllm::kernels::cuda::small_m
