// What the kernels of products share.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_params.h"
#include "kernels/cuda/types.cuh"

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

// d += a · b, 16 x 8 sums of 16 products each.
__device__ __forceinline__ void multiply(Bf16, float (&d)[4], unsigned a0, unsigned a1, unsigned a2,
                                         unsigned a3, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply(F16, float (&d)[4], unsigned a0, unsigned a1, unsigned a2,
                                         unsigned a3, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void copy_async(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(global)
               : "memory");
}

__device__ __forceinline__ void wait_for_async_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// One element of the result, from its sum.
template <typename T>
__device__ __forceinline__ void store_output(const LinearParams<T>& p, int row, int output,
                                             float sum) {
  if (p.bias != nullptr) sum += widen(p.bias[output]);
  if (p.residual != nullptr) sum += widen(p.residual[row * p.residual_stride + output]);
  if (p.float_out) {
    static_cast<float*>(p.out)[row * p.out_stride + output] = sum;
  } else {
    static_cast<T*>(p.out)[row * p.out_stride + output] = narrow<T>(sum);
  }
}

}  // namespace nvllm::kernels::cuda
