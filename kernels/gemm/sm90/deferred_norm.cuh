// Deferred RMSNorm between small-M GEMMs. The GEMM that produces the rows multiplies its results by
// the norm's weights and stores the sums of their squares, over 64 outputs of each row. The GEMM
// that reads the rows multiplies its results by a factor per row: every block adds up all squares
// of its rows while its first x is in flight.
#pragma once

#include <bit>

#include "kernels/gemm/gemm.h"
#include "kernels/pointwise/sm80/rmsnorm.cuh"

namespace nvllm::kernels::cuda::small_m {

// The deferred norms of a GEMM: that of its input, and that of its result.
template <typename T>
struct DeferredNorms {
  const float* own_squares;  // of x; nullptr: none
  float* next_squares;       // nullptr: none
  T* next_weighted;
  const T* next_weight;

  explicit DeferredNorms(const GemmCall& call) : DeferredNorms() {
    const GemmOperands& operands = call.operands;
    if (call.plan.prologue == Prologue::deferred_rms_norm) {
      own_squares = operands.prologue.deferred.squares.as<float>();
    }
    if (!call.plan.defers_next) return;
    next_squares = operands.epilogue.deferred.squares.as<float>();
    next_weighted = operands.epilogue.deferred.weighted.as<T>();
    next_weight = operands.epilogue.norm_weight.as<T>();
  }

 private:
  DeferredNorms()
      : own_squares(nullptr), next_squares(nullptr), next_weighted(nullptr), next_weight(nullptr) {}
};

__device__ __forceinline__ void store_shared(unsigned to, float4 value) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(value.x), "f"(value.y),
               "f"(value.z), "f"(value.w)
               : "memory");
}

__device__ __forceinline__ float4 load_shared(unsigned from) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(from)
               : "memory");
  return value;
}

__device__ __forceinline__ void store_shared(unsigned to, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}

__device__ __forceinline__ float load_shared_float(unsigned from) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");
  return value;
}
__device__ __forceinline__ float2 load_shared_pair(unsigned from) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(from));
  return pair;
}

// Adds up the squares of rows over their parts: each warp takes every kGroups-th part, each lane
// four rows. A warp stores its sums in its part of `places`.
template <int kThreads, int kRows>
__device__ __forceinline__ void add_squares(const float* squares, int parts, unsigned places) {
  constexpr int kLanes = std::bit_ceil(kRows / 4u), kAtOnce = 8, kGroups = kThreads / kLanes;
  const int four = threadIdx.x % kLanes;
  const bool inside = four < kRows / 4;
  float4 sum{};
  for (int first = threadIdx.x / kLanes; first < parts; first += kAtOnce * kGroups) {
    float4 next[kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int part = first + i * kGroups;
      if (inside && part < parts)
        next[i] = reinterpret_cast<const float4*>(squares + part * kSquaresRows)[four];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      sum.x += next[i].x, sum.y += next[i].y, sum.z += next[i].z, sum.w += next[i].w;
    }
  }
#pragma unroll
  for (int lanes = kLanes; lanes < 32; lanes *= 2) {
    sum.x += __shfl_xor_sync(0xffffffffu, sum.x, lanes);
    sum.y += __shfl_xor_sync(0xffffffffu, sum.y, lanes);
    sum.z += __shfl_xor_sync(0xffffffffu, sum.z, lanes);
    sum.w += __shfl_xor_sync(0xffffffffu, sum.w, lanes);
  }
  if (inside && threadIdx.x % 32 < kLanes)
    store_shared(places + (threadIdx.x / 32 * kRows + four * 4) * 4, sum);
}

// A row's sum over the partial sums of `kWarps` warps.
template <int kWarps, int kRows>
__device__ __forceinline__ float squares_of(unsigned places, int row) {
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp)
    sum += load_shared_float(places + (warp * kRows + row) * 4);
  return sum;
}

}  // namespace nvllm::kernels::cuda::small_m
