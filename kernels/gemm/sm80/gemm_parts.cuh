// What the kernels of products share.
#pragma once

#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm80/types.cuh"
#include "kernels/gemm/sm80/linear_params.h"

namespace nvllm::kernels::cuda {

// Weights are read once: past the L1. Zeros if not `inside`.
template <typename T>
__device__ __forceinline__ Vector<T> load_weights(const T* address, bool inside) {
  Vector<T> v;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@p ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
      : "l"(address), "r"(static_cast<int>(inside)));
  return v;
}

// What an element of the result is added to.
template <typename T>
__device__ __forceinline__ float residual_of(const LinearParams<T>& p, int row, int output) {
  return p.residual == nullptr ? 0 : widen(p.residual[row * p.residual_stride + output]);
}

// One element of the result, from its sum and residual_of() it.
template <typename T>
__device__ __forceinline__ void store_output(const LinearParams<T>& p, int row, int output,
                                             float sum, float residual) {
  if (p.bias != nullptr) sum += widen(p.bias[output]);
  if (p.residual != nullptr) sum += residual;
  if (p.float_out) {
    static_cast<float*>(p.out)[row * p.out_stride + output] = sum;
  } else {
    static_cast<T*>(p.out)[row * p.out_stride + output] = narrow<T>(sum);
  }
}

}  // namespace nvllm::kernels::cuda
