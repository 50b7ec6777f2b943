// RMSNorm of one row: the arithmetic shared by kernels/pointwise/sm80/rmsnorm.cu and the fused
// all-reduce (ipc/collective), so that both produce the same bits.
//
// Order of the sum: a row is cut into vectors of 16 bytes, the last one zero-padded, and into
// chunks of 32 vectors. The squares of a vector are added in ascending order, the vectors of a
// chunk in a butterfly over the lanes of a warp, the chunks four at a time. Trailing chunks of
// zeros change nothing. So the bits depend only on the number of columns and the element type, not
// on how many threads or blocks share a row, nor on how the vectors were obtained (16-byte loads,
// single elements, sums over peers). Every operation has an explicit rounding, so that no compiler
// contracts it with another one; the inverse square root is the GPU's own, accurate to 2 units in
// the last place.
//
// A kernel that normalises one row per block, V vectors per thread:
//
//   alignas(16) __shared__ float scratch[rms_norm_slots(V * blockDim.x / 32)];
//   Vector<T> row[V] = ...;         // thread t: vectors t, t + blockDim.x, ...; zeros beyond
//   const float scale =
//       rms_norm_scale(row, threadIdx.x, blockDim.x, 1.0f / columns, epsilon, scratch);
//   out = rms_norm_apply(row[v], scale, weight[v])
#pragma once

#include "kernels/common/sm80/types.cuh"

namespace nvllm::kernels {

inline constexpr int kRmsNormMaxThreads = 1024;

// The number of 16-byte vectors of a row.
__host__ __device__ constexpr int rms_norm_vectors(int columns, int element_bytes) {
  return (columns * element_bytes + 15) / 16;
}

// The slots for this many chunk sums, which are read four at a time.
__host__ __device__ constexpr int rms_norm_slots(int chunks) {
  return (chunks + 3) / 4 * 4;
}

// The sum of a vector's squares.
template <typename T>
__device__ __forceinline__ float rms_norm_vector(const Vector<T>& vector) {
  const Floats<T> x = widen(vector);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < Vector<T>::kElements; ++i) sum = __fmaf_rn(x.element[i], x.element[i], sum);
  return sum;
}

// The sum of a chunk's squares, in all lanes of the warp that holds it, one vector per lane. All
// lanes call it together.
template <typename T>
__device__ __forceinline__ float rms_norm_chunk(const Vector<T>& vector) {
  float sum = rms_norm_vector(vector);
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, lanes));
  }
  return sum;
}

// The sum of a row's chunk sums, `slots` of them, a multiple of four, at a multiple of 16 bytes.
__device__ __forceinline__ float rms_norm_add_chunks(const float* sums, int slots) {
  float sum = 0;
  for (int slot = 0; slot < slots; slot += 4) {
    const float4 four = *reinterpret_cast<const float4*>(sums + slot);
    sum = __fadd_rn(sum, __fadd_rn(__fadd_rn(four.x, four.y), __fadd_rn(four.z, four.w)));
  }
  return sum;
}

// 1 / sqrt(mean of the row's squares + epsilon).
__device__ __forceinline__ float rms_norm_scale(float squares, float inverse_columns,
                                                float epsilon) {
  return rsqrtf(__fadd_rn(__fmul_rn(squares, inverse_columns), epsilon));
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

// The same with a number added to the weights.
template <typename T>
__device__ __forceinline__ Vector<T> rms_norm_apply(const Vector<T>& row, float scale,
                                                    const Vector<T>& weight, float offset) {
  Floats<T> out = widen(row);
  const Floats<T> factors = widen(weight);
#pragma unroll
  for (int i = 0; i < Vector<T>::kElements; ++i) {
    out.element[i] =
        __fmul_rn(__fmul_rn(out.element[i], scale), __fadd_rn(offset, factors.element[i]));
  }
  return narrow(out);
}

// --- a row per group of threads

// The threads of a group: a multiple of 32, two vectors each up to 1024 threads.
__host__ __device__ constexpr int rms_norm_threads(int vectors) {
  const int threads = (vectors + 63) / 64 * 32;
  return threads < kRmsNormMaxThreads ? threads : kRmsNormMaxThreads;
}

// The same scale in all threads of a group that holds a row: thread t has vectors t, t + threads,
// ... All groups of a block have this size and start at multiples of it. All threads of the block
// call it together. `scratch` belongs to the group, rms_norm_slots(V * threads / 32) floats; it may
// be reused after __syncthreads().
template <typename T, int V>
__device__ __forceinline__ float rms_norm_scale(const Vector<T> (&row)[V], int thread, int threads,
                                                float inverse_columns, float epsilon,
                                                float* scratch) {
  const int warps = threads / 32;
  const int chunks = V * warps;
  const int slots = rms_norm_slots(chunks);
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const float sum = rms_norm_chunk(row[v]);
    if (thread % 32 == 0) scratch[v * warps + thread / 32] = sum;
  }
  if (thread < slots - chunks) scratch[chunks + thread] = 0;
  if (warps > 1) {
    __syncthreads();
  } else {
    __syncwarp();
  }
  return rms_norm_scale(rms_norm_add_chunks(scratch, slots), inverse_columns, epsilon);
}

}  // namespace nvllm::kernels
