// Norms between products in halves (BegunNorm). A product that begins one multiplies its results by the norm's weights, and
// a warpgroup adds up their squares, 64 outputs of each row. A product that ends one has a factor for each row: every
// block adds up all squares of its rows' inputs, while its first x is on its way.
#pragma once

#include <bit>

#include "kernels/gemm/linear.h"
#include "kernels/pointwise/sm80/rmsnorm.cuh"

namespace nvllm::kernels::cuda::skinny {

// The halves of a norm that a product takes: the second one of its inputs', and the first one of its outputs'.
template <typename T>
struct NormHalves {
  const float* begun;  // squares of the inputs; nullptr: none
  float* squares;      // nullptr: none
  T* weighted;
  const T* weight;

  explicit NormHalves(const Linear& args)
      : begun(args.begun.squares.as<float>()),
        squares(args.begins.squares.as<float>()),
        weighted(args.begins.weighted.as<T>()),
        weight(args.next_norm_weight.as<T>()) {}
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

// The squares of a row's inputs, added up over parts: by each warp those of every so many-th part, a lane four rows'. What
// a warp has of each row goes to its place.
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

// A row's squares, of the places of `kWarps` warps.
template <int kWarps, int kRows>
__device__ __forceinline__ float squares_of(unsigned places, int row) {
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp)
    sum += load_shared_float(places + (warp * kRows + row) * 4);
  return sum;
}

}  // namespace nvllm::kernels::cuda::skinny
