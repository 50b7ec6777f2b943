// Products of some rows of 16-bit floats, 17 to 64: bound by the reading of the matrix as long as every
// multiprocessor has its part of it on the way, and x does not come too often.
//
// A block makes a tile of kOutputs outputs for all rows, of a share of the inputs; the blocks of a cluster
// share the inputs of a tile. Inputs come in stages of 64, weights and x into shared memory, kStages on
// their way; the first stages' weights are asked for before the kernel waits for the one before it (see
// Linear, "constants"). The tensor cores take the weights as operand A, the rows of x as columns of B. In the
// end each block adds up some of the rows, out of the shared memory of all blocks of the cluster, in
// ascending order: results are reproducible.
#pragma once

#include "kernels/cuda/linear_parts.cuh"

namespace nvllm::kernels::cuda {

inline constexpr int kStageInputs = 64;
inline constexpr int kSkinnyThreads = 128;

template <int kOutputs, int kRows, int kStages>
struct SkinnyShared {
  static constexpr int kRowBytes = kStageInputs * 2;  // of a stage: 8 units of 16 bytes
  static constexpr int kWeightBytes = kOutputs * kRowBytes;
  static constexpr int kStageBytes = kWeightBytes + kRows * kRowBytes;
  static constexpr int kSumStride = kOutputs + 4;  // floats of a row's sums
  static constexpr int kSumBytes = kRows * kSumStride * 4;
  static constexpr int kBytes =
      kStages * kStageBytes > kSumBytes ? kStages* kStageBytes : kSumBytes;
};

// Neighbouring rows' units of one column lie in different banks.
__device__ __forceinline__ int unit_offset(int row, int unit) {
  return row * kStageInputs * 2 + (unit ^ (row % 8)) * 16;
}

__device__ __forceinline__ void load_matrices(unsigned address, unsigned (&out)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void copy_async_to(unsigned shared, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared), "l"(global)
               : "memory");
}

__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int kLeft>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Of all threads of the cluster.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Of another block's shared memory.
__device__ __forceinline__ float load_from_block(unsigned shared, unsigned rank) {
  float value;
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [there];\n}"
      : "=f"(value)
      : "r"(shared), "r"(rank)
      : "memory");
  return value;
}

// grid: (splits, tiles), clusters of (splits, 1). p.inputs is a multiple of kStageInputs, p.rows at most kRows.
template <typename T, int kOutputs, int kRows, int kStages>
__global__ void __launch_bounds__(kSkinnyThreads, 2) skinny_kernel(const LinearParams<T> p) {
  using Shared = SkinnyShared<kOutputs, kRows, kStages>;
  constexpr int kWarpOutputs = kOutputs / 2, kWarpRows = kRows / 2;  // of 2 x 2 warps
  constexpr int kA = kWarpOutputs / 16, kB = kWarpRows / 8;
  extern __shared__ __align__(128) char shared[];
  const unsigned base = static_cast<unsigned>(__cvta_generic_to_shared(shared));

  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int splits = gridDim.x, split = blockIdx.x, first_output = blockIdx.y * kOutputs;
  const int all = p.inputs / kStageInputs;
  const int first = all * split / splits, count = all * (split + 1) / splits - first;

  // Each thread copies one column of units of every 16th row.
  const int unit = thread % 8, row = thread / 8;
  constexpr int kRowsAtOnce = kSkinnyThreads / 8;
  const auto copy_weights = [&](int stage) {
    const unsigned to = base + stage % kStages * Shared::kStageBytes;
    const long long input = static_cast<long long>(first + stage) * kStageInputs + unit * 8;
#pragma unroll
    for (int i = 0; i < kOutputs / kRowsAtOnce; ++i) {
      const int r = row + i * kRowsAtOnce, output = min(first_output + r, p.outputs - 1);
      copy_async_to(to + unit_offset(r, unit),
                    p.weight + static_cast<long long>(output) * p.inputs + input);
    }
  };
  const auto copy_x = [&](int stage) {
    const unsigned to = base + stage % kStages * Shared::kStageBytes + Shared::kWeightBytes;
    const long long input = static_cast<long long>(first + stage) * kStageInputs + unit * 8;
#pragma unroll
    for (int i = 0; i < kRows / kRowsAtOnce; ++i) {
      const int r = row + i * kRowsAtOnce;
      copy_async_to(to + unit_offset(r, unit), p.x + min(r, p.rows - 1) * p.x_stride + input);
    }
  };

#pragma unroll 1
  for (int stage = 0; stage < min(kStages - 1, count); ++stage) copy_weights(stage);
  begin_after_previous_kernel();
#pragma unroll 1
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (stage < count) copy_x(stage);
    commit_copies();
  }

  const int warp_output = warp % 2 * kWarpOutputs, warp_row = warp / 2 * kWarpRows;
  // What this lane gives the addresses of: rows of A of both halves of 16 inputs, rows of two Bs.
  const int a_row = warp_output + lane % 16, a_half = lane / 16;
  const int b_row = warp_row + lane % 8 + lane / 16 * 8, b_half = lane / 8 % 2;
  float sums[kA][kB][4] = {};
#pragma unroll 1
  for (int stage = 0; stage < count; ++stage) {
    wait_for_copies<kStages - 2>();
    __syncthreads();  // what others copied is there, and the stage before has been read by all
    if (stage + kStages - 1 < count) {
      copy_weights(stage + kStages - 1);
      copy_x(stage + kStages - 1);
    }
    commit_copies();
    const unsigned weights = base + stage % kStages * Shared::kStageBytes;
    const unsigned x = weights + Shared::kWeightBytes;
#pragma unroll
    for (int step = 0; step < kStageInputs / 16; ++step) {
      unsigned a[kA][4], b[kB / 2][4];
#pragma unroll
      for (int i = 0; i < kA; ++i) {
        load_matrices(weights + unit_offset(a_row + i * 16, step * 2 + a_half), a[i]);
      }
#pragma unroll
      for (int i = 0; i < kB / 2; ++i) {
        load_matrices(x + unit_offset(b_row + i * 16, step * 2 + b_half), b[i]);
      }
#pragma unroll
      for (int i = 0; i < kA; ++i) {
#pragma unroll
        for (int j = 0; j < kB; ++j) {
          multiply(T{}, sums[i][j], a[i][0], a[i][1], a[i][2], a[i][3], b[j / 2][j % 2 * 2],
                   b[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
  }

  // The sums, row by row, where the stages were.
  wait_for_copies<0>();
  __syncthreads();
  float* const own = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < kA; ++i) {
#pragma unroll
    for (int j = 0; j < kB; ++j) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int output = warp_output + i * 16 + lane / 4 + k / 2 * 8;
        const int r = warp_row + j * 8 + lane % 4 * 2 + k % 2;
        own[r * Shared::kSumStride + output] = sums[i][j][k];
      }
    }
  }
  cluster_sync();
  const int outputs = min(kOutputs, p.outputs - first_output);
  for (int i = thread; i < kRows / splits * kOutputs; i += kSkinnyThreads) {
    const int r = i / kOutputs * splits + split, output = i % kOutputs;
    if (r >= p.rows || output >= outputs) continue;
    const unsigned at = base + (r * Shared::kSumStride + output) * 4;
    float sum = 0;
    for (int other = 0; other < splits; ++other) sum += load_from_block(at, other);
    store_output(p, r, first_output + output, sum);
  }
  cluster_sync();  // nobody leaves while others read its memory
}

}  // namespace nvllm::kernels::cuda
