// GEMV with each sum as one chain over K: up to 16 rows times a weight of 16-bit floats, with the
// bits of larger GEMMs that add in the same order (GemmOptions::invariant).
//
// A warp computes kTiles tiles of 8 outputs for all rows and all inputs, 16 at a time, in one
// accumulator. A lane copies 16 bytes, 8 inputs, of one output's weights; 4 adjacent lanes form a
// `slice`, 32 inputs, which are two steps of the chain. The order of the 16 inputs within a step is
// arbitrary, but they must be the 16 inputs that other kernels use in that step; so lanes exchange
// words (exchange()). The same happens to rows of x.
//
// Slices are copied asynchronously, kBatches batches ahead: if as many were loaded into registers,
// they could not be waited for one by one. Every lane reads back what it has copied itself, so
// neither warps nor lanes wait for each other.
#pragma once

#include "kernels/gemm/sm80/gemv.cuh"

namespace nvllm::kernels::cuda::invariant {

inline constexpr int kBatch = 4;  // slices that are waited for together

// The first two of four lanes have inputs 0 to 15 of a slice, the others 16 to 31. Afterwards words
// 0 and 1 of all four are inputs 0 to 15.
template <typename T>
__device__ __forceinline__ void exchange(Vector<T>& v) {
  const bool upper = (threadIdx.x & 2) != 0;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const unsigned got = __shfl_xor_sync(~0u, upper ? v.word[j] : v.word[j + 2], 2);
    (upper ? v.word[j] : v.word[j + 2]) = got;
  }
}

// Zeros if not `inside`. kOnce: not read by other blocks.
template <bool kOnce>
__device__ __forceinline__ void copy(unsigned to, const void* from, bool inside) {
  const int bytes = inside ? 16 : 0;
  if constexpr (kOnce) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
  }
}

// Bytes of shared memory of a block.
constexpr int shared_bytes(int halves, int tiles, int batches, int warps) {
  return warps * batches * kBatch * (tiles + halves) * 512;
}

// kMaxRows: 8 or 16. kGated: p.outputs counts gate rows; each tile of them is paired with a tile of
// up rows (kTiles is 2 then).
template <typename T, bool kGated, int kMaxRows, int kTiles, int kBatches, int kWarps>
__global__ void __launch_bounds__(kWarps * 32) gemv_kernel(const GemmParams<T> p) {
  constexpr int kHalves = kMaxRows / 8;
  constexpr int kOwnTiles = kGated ? kTiles / 2 : kTiles;
  constexpr int kSlice = (kTiles + kHalves) * 512;  // bytes of weights and of x
  static_assert(!kGated || kTiles == 2);
  extern __shared__ __align__(128) char shared[];

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = lane / 4, within = lane % 4 * 8;  // of the tile's outputs; the slice's inputs
  const int first_output =
      (static_cast<int>(blockIdx.x) * kWarps + warp) * kOwnTiles * kTileOutputs;
  const unsigned ring = static_cast<unsigned>(__cvta_generic_to_shared(shared)) +
                        warp * kBatches * kBatch * kSlice + lane * 16;

  // This lane's first weights of a tile.
  const T* weight[kTiles];
  bool inside[kTiles];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int output = first_output + (kGated ? 0 : tile) * kTileOutputs + group;
    inside[tile] = output < p.outputs;
    const long long row = inside[tile] ? output + (kGated && tile == 1 ? p.outputs : 0) : 0;
    weight[tile] = p.weight + row * p.inputs + within;
  }
  const auto copy_weights = [&](int batch) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int input = (batch * kBatch + i) * kSliceInputs;
      const unsigned to = ring + (batch % kBatches * kBatch + i) * kSlice;
      const bool exists = input + within < p.inputs;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        copy<true>(to + tile * 512, weight[tile] + (exists ? input : 0), exists && inside[tile]);
      }
    }
  };
#pragma unroll
  for (int batch = 0; batch < kBatches - 1; ++batch) copy_weights(batch);

  pdl_begin();
  // The residual loads overlap the multiplication.
  float residual[kOwnTiles][kHalves][2] = {};
  if constexpr (!kGated) {
#pragma unroll
    for (int i = 0; i < kOwnTiles * kHalves * 2; ++i) {
      const int tile = i / 2 / kHalves, half = i / 2 % kHalves;
      const int row = half * 8 + group;
      const int output = first_output + tile * kTileOutputs + lane % 4 * 2 + i % 2;
      if (row < p.rows && output < p.outputs)
        residual[tile][half][i % 2] = residual_of(p, row, output);
    }
  }
  const T* x[kHalves];
  bool has_row[kHalves];
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const int row = half * 8 + group;
    has_row[half] = row < p.rows;
    x[half] = p.x + (has_row[half] ? row : 0) * p.x_stride + within;
  }
  const auto copy_x = [&](int batch) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int input = (batch * kBatch + i) * kSliceInputs;
      const unsigned to = ring + (batch % kBatches * kBatch + i) * kSlice + kTiles * 512;
      const bool exists = input + within < p.inputs;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        copy<false>(to + half * 512, x[half] + (exists ? input : 0), exists && has_row[half]);
      }
    }
    commit_copies();
  };
  // The first copy groups also include the weights of all batches so far.
#pragma unroll
  for (int batch = 0; batch < kBatches - 1; ++batch) copy_x(batch);

  struct Slice {
    Vector<T> w[kTiles], x[2];
  };
  const auto load = [&](Slice(&slices)[kBatch], int batch) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const char* const from = shared + warp * kBatches * kBatch * kSlice + lane * 16 +
                               (batch % kBatches * kBatch + i) * kSlice;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
        slices[i].w[tile] = *reinterpret_cast<const Vector<T>*>(from + tile * 512);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        slices[i].x[half] = {};
        if (half < kHalves)
          slices[i].x[half] = *reinterpret_cast<const Vector<T>*>(from + (kTiles + half) * 512);
      }
    }
  };
  const auto exchange_all = [&](Slice(&slices)[kBatch]) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) exchange(slices[i].w[tile]);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) exchange(slices[i].x[half]);
    }
  };
  float d[kTiles][4] = {};
  const auto multiply_all = [&](const Slice(&slices)[kBatch]) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const auto& rows = slices[i].x;
#pragma unroll
      for (int step = 0; step < 4; step += 2) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const Vector<T>& b = slices[i].w[tile];
          multiply_add<T>(d[tile], rows[0].word[step], rows[1].word[step], rows[0].word[step + 1],
                          rows[1].word[step + 1], b.word[step], b.word[step + 1]);
        }
      }
    }
  };

  const int batches = (p.inputs + kBatch * kSliceInputs - 1) / (kBatch * kSliceInputs);
  Slice now[kBatch], next[kBatch];
  wait_for_copies<kBatches - 2>();
  load(now, 0);
  exchange_all(now);
  // While a batch is multiplied, the next one is loaded from shared memory.
  const auto advance = [&](const Slice(&current)[kBatch], Slice(&after)[kBatch], int batch) {
    copy_weights(batch + kBatches - 1);
    copy_x(batch + kBatches - 1);
    wait_for_copies<kBatches - 2>();
    load(after, batch + 1);
    multiply_all(current);
    exchange_all(after);
  };
  for (int batch = 0; batch < batches; batch += 2) {
    advance(now, next, batch);
    advance(next, now, batch + 1);  // zeros, if there is none
  }
  wait_for_async_copies();

#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const int row = half * 8 + group;
    if (row >= p.rows) continue;
#pragma unroll
    for (int i = 0; i < kOwnTiles * 2; ++i) {
      const int tile = i / 2, output = first_output + tile * kTileOutputs + lane % 4 * 2 + i % 2;
      if (output >= p.outputs) continue;
      if constexpr (kGated) {
        store_gated(p, row, output, d[0][2 * half + i % 2], d[1][2 * half + i % 2]);
      } else {
        store_output(p, row, output, d[tile][2 * half + i % 2], residual[tile][half][i % 2]);
      }
    }
  }
}

}  // namespace nvllm::kernels::cuda::invariant
