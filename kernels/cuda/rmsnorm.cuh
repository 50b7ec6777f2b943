// RMSNorm of one row by a group of threads: the arithmetic that kernels/cuda/rmsnorm.cu and the
// fused all-reduce (ipc/collective) share, so that both give the same bits.
//
// The mapping. A row is cut into vectors of 16 bytes, the last one padded with zeros. A group of
// rms_norm_threads(vectors) threads works on it: thread t of the group owns vectors t, t + threads,
// t + 2 * threads, ..., in registers. How a thread got its vectors (16-byte loads, single elements,
// sums over peers) does not matter.
//
// The order. Each thread adds the squares of its elements in ascending order; the lanes of a warp,
// then the group's warps, are added in a butterfly. The bits of the sum therefore depend on the
// number of columns and the element type alone, and all of a group's threads have the same sum.
// Every operation names its rounding, so that no compiler contracts it into another one.
//
// A kernel that normalises one row per block, V vectors per thread:
//
//   __shared__ float scratch[kRmsNormScratch];
//   Vector<T> row[V] = ...;                          // zeros where there is no vector
//   const float scale = rms_norm_scale(row, threadIdx.x, blockDim.x, columns, epsilon, scratch);
//   out = rms_norm_apply(row[v], scale, weight[v])
#pragma once

#include "kernels/cuda/types.cuh"

namespace nvllm::kernels {

inline constexpr int kRmsNormMaxThreads = 1024;

// The floats of shared memory that a group needs.
inline constexpr int kRmsNormScratch = kRmsNormMaxThreads / 32;

// The 16-byte vectors of a row.
__host__ __device__ constexpr int rms_norm_vectors(int columns, int element_bytes) {
  return (columns * element_bytes + 15) / 16;
}

// The threads of a group: a multiple of 32, two vectors each up to 1024 threads.
__host__ __device__ constexpr int rms_norm_threads(int vectors) {
  const int threads = (vectors + 63) / 64 * 32;
  return threads < kRmsNormMaxThreads ? threads : kRmsNormMaxThreads;
}

// The vectors that a thread of the group owns at most.
__host__ __device__ constexpr int rms_norm_vectors_per_thread(int vectors) {
  const int threads = rms_norm_threads(vectors);
  return (vectors + threads - 1) / threads;
}

// 1 / sqrt(mean of the row's squares + epsilon), the same bits in all threads of the group.
// `thread` of `threads` is the caller's place in the group; the groups of a block are all of this
// size and start at multiples of it. All threads of the block call it together. `scratch` belongs
// to the group; to use it again, __syncthreads() first.
template <typename T, int V>
__device__ __forceinline__ float rms_norm_scale(const Vector<T> (&row)[V], int thread, int threads,
                                                int columns, float epsilon, float* scratch) {
  float sum = 0;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const Floats<T> x = widen(row[v]);
#pragma unroll
    for (int i = 0; i < Vector<T>::kElements; ++i) {
      sum = __fmaf_rn(x.element[i], x.element[i], sum);
    }
  }
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, lanes));
  }
  const int warps = threads / 32;
  if (warps > 1) {
    const int lane = thread % 32;
    if (lane == 0) scratch[thread / 32] = sum;
    __syncthreads();
    sum = lane < warps ? scratch[lane] : 0.0f;
    // Stops as soon as all warps are added; the lanes beyond them add zeros. What remains to be
    // done is to give lanes that hold only zeros the sum, which lane 0 has.
    for (int lanes = 1; lanes < warps; lanes *= 2) {
      sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, lanes));
    }
    sum = __shfl_sync(0xffffffffu, sum, 0);
  }
  const float mean = __fdiv_rn(sum, static_cast<float>(columns));
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, epsilon)));
}

template <typename T>
__device__ __forceinline__ Vector<T> rms_norm_apply(const Vector<T>& row, float scale,
                                                    const Vector<T>& weight) {
  Floats<T> out = widen(row);
  const Floats<T> factors = widen(weight);
#pragma unroll
  for (int i = 0; i < Vector<T>::kElements; ++i) {
    out.element[i] = __fmul_rn(__fmul_rn(out.element[i], scale), factors.element[i]);
  }
  return narrow(out);
}

}  // namespace nvllm::kernels
