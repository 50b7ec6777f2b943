// Tensor-core instructions (mma.sync, Ampere and later) on 16-bit floats, and loads of their
// operands from shared memory.
//
// Fragment layout of a 16 x 8 mma accumulator: lane l has columns 2 (l % 4) and the next; elements
// [0] and [1] belong to row l / 4, [2] and [3] to row l / 4 + 8.
#pragma once

#include "kernels/common/sm80/types.cuh"

namespace nvllm::kernels::cuda {

struct Quad {
  unsigned word[4];
};

// Loads four 8 x 8 matrices; lanes 8 i to 8 i + 7 give the addresses of matrix i's rows.
template <bool kTransposed>
__device__ __forceinline__ Quad load_matrices(unsigned address) {
  Quad q;
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(q.word[0]), "=r"(q.word[1]), "=r"(q.word[2]), "=r"(q.word[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(q.word[0]), "=r"(q.word[1]), "=r"(q.word[2]), "=r"(q.word[3])
                 : "r"(address)
                 : "memory");
  }
  return q;
}

// sum += a b, 16 x 16 times 16 x 8.
template <typename T>
__device__ __forceinline__ void multiply_add(float (&sum)[4], const Quad& a, unsigned b0,
                                             unsigned b1) {
  if constexpr (dtype_of<T> == DType::bf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b0), "r"(b1));
  }
}

template <typename T>
__device__ __forceinline__ void multiply_add(float (&sum)[4], unsigned a0, unsigned a1, unsigned a2,
                                             unsigned a3, unsigned b0, unsigned b1) {
  multiply_add<T>(sum, Quad{{a0, a1, a2, a3}}, b0, b1);
}

template <typename T>
__device__ __forceinline__ unsigned pack(float low, float high) {
  return narrow<T>(low).bits | static_cast<unsigned>(narrow<T>(high).bits) << 16;
}

}  // namespace nvllm::kernels::cuda
