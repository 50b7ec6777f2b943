// Products of some rows of 16-bit floats on Hopper: bound by the reading of the matrix, as long as enough of it is on
// the way and everything else happens meanwhile.
//
// A block makes kTiles * 64 outputs for all rows out of a share of the inputs; the blocks of a cluster share the
// inputs of a tile. Weights and x come in stages of 64 inputs through a ring in shared memory, filled by bulk copies of
// one thread, emptied by kTiles warpgroups. The weights are the products' left factor, so that few rows are few columns.
// The ring is filled with weights before the kernel waits for the one before it (see Linear, "constants"); x follows.
//
// In the end a warpgroup has its sums in quads: quad q are four floats of each thread, of rows 8 q to 8 q + 7
// (wgmma.cuh). Block q % splits of a cluster makes results of it: the others send theirs, and it adds them up in
// ascending order. So results are reproducible, and a row's do not depend on the others.
#pragma once

#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/gated_activation.cuh"
#include "kernels/cuda/linear_parts.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace nvllm::kernels::cuda::skinny {

inline constexpr int kStageInputs = 64;
inline constexpr int kTileOutputs = 64;  // of a warpgroup
inline constexpr int kRowBytes = 128;    // of a stage
inline constexpr int kAlignment = 1024;

template <int kTiles, int kRows>
struct Shape {
  static constexpr int kOutputs = kTiles * kTileOutputs;
  static constexpr int kConsumers = kTiles * 128;  // threads; then comes a warp that copies
  static constexpr int kThreads = kConsumers + 32;
  static constexpr int kWeightBytes = kOutputs * kRowBytes;
  static constexpr int kStageBytes = kWeightBytes + kRows * kRowBytes;
  static constexpr int kQuads = kRows / 8;
  static constexpr int kQuadBytes = kConsumers * 16;
};

// Where a block has what: the ring, the sums from other blocks, barriers.
__host__ __device__ constexpr int received_bytes(int quads, int quad_bytes, int splits) {
  return splits == 1 ? 0 : (quads + splits - 1) / splits * splits * quad_bytes;
}
template <int kTiles, int kRows>
__host__ __device__ constexpr int shared_bytes(int stages, int splits) {
  using S = Shape<kTiles, kRows>;
  return kAlignment + stages * (S::kStageBytes + 16) +
         received_bytes(S::kQuads, S::kQuadBytes, splits) + 8;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <typename T>
__device__ __forceinline__ unsigned pack(float low, float high) {
  return static_cast<unsigned>(narrow<T>(low).bits) | static_cast<unsigned>(narrow<T>(high).bits)
                                                          << 16;
}
template <typename T>
__device__ __forceinline__ float2 unpack(unsigned word) {
  return make_float2(widen(T{static_cast<unsigned short>(word)}),
                     widen(T{static_cast<unsigned short>(word >> 16)}));
}

// Lanes whose outputs are neighbours have a column each of two rows; now each has a row of both columns: of lanes with
// an even output the first row.
__device__ __forceinline__ float2 exchange(float first_row, float second_row, bool even) {
  const float other = __shfl_xor_sync(~0u, even ? second_row : first_row, 4);
  return even ? make_float2(first_row, other) : make_float2(other, second_row);
}

template <typename T>
__device__ __forceinline__ void store_pair(const LinearParams<T>& p, int row, int output,
                                           float2 sum, unsigned residual) {
  if (p.bias != nullptr) {
    const float2 bias = unpack<T>(*reinterpret_cast<const unsigned*>(p.bias + output));
    sum.x += bias.x, sum.y += bias.y;
  }
  const float2 more = unpack<T>(residual);
  sum.x += more.x, sum.y += more.y;
  if (p.float_out) {
    *reinterpret_cast<float2*>(static_cast<float*>(p.out) + row * p.out_stride + output) = sum;
  } else {
    *reinterpret_cast<unsigned*>(static_cast<T*>(p.out) + row * p.out_stride + output) =
        pack<T>(sum.x, sum.y);
  }
}

// Which block makes results of a quad, and where it has the sums of it.
struct Owner {
  int block = 0, slots = 0;

  __device__ __forceinline__ void advance(int splits) {
    if (++block < splits) return;
    block = 0;
    slots += splits;
  }
};

#endif

// grid: tiles * splits, clusters of splits. `weight` [groups, 2, 8, inputs], `x` [1, rows, inputs] in boxes of 64
// inputs, a tile's groups or kRows rows. `stages`: of the ring, all steps' or 2 at least. gated: the first 8 outputs of a
// group are gates of the second 8, and p.outputs are gates only.
template <typename T, int kTiles, int kRows>
__global__ void __launch_bounds__(Shape<kTiles, kRows>::kThreads, 1)
    skinny_kernel(const __grid_constant__ CUtensorMap weight, const __grid_constant__ CUtensorMap x,
                  const LinearParams<T> p, int splits, int stages, bool gated) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using S = Shape<kTiles, kRows>;
  extern __shared__ char memory[];
  const unsigned base = (static_cast<unsigned>(__cvta_generic_to_shared(memory)) + kAlignment - 1) &
                        ~(kAlignment - 1);
  const unsigned received = base + stages * S::kStageBytes;
  const unsigned barriers = received + received_bytes(S::kQuads, S::kQuadBytes, splits);
  const Barrier all_received{barriers};
  const auto full = [&](int stage) { return Barrier{barriers + 8 + stage * 8}; };
  const auto empty = [&](int stage) { return Barrier{barriers + 8 + (stages + stage) * 8}; };

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int split = blockIdx.x % splits, tile = blockIdx.x / splits;
  const int all = (p.inputs + kStageInputs - 1) / kStageInputs;
  const int first = all * split / splits, count = all * (split + 1) / splits - first;
  const int filled = min(stages, count);
  const bool copies = warp == kTiles * 4 && lane == 0;
  const auto copy_weights = [&](int stage, int step) {
    full(stage).arrive_and_expect(S::kStageBytes);
    copy_box(base + stage * S::kStageBytes, weight, (first + step) * kStageInputs, 0, 0,
             tile * (S::kOutputs / 16), full(stage));
  };
  const auto copy_x = [&](int stage, int step) {
    copy_box(base + stage * S::kStageBytes + S::kWeightBytes, x, (first + step) * kStageInputs, 0,
             0, full(stage));
  };
  if (copies) {
    prefetch(x);
    for (int stage = 0; stage < stages; ++stage) {
      full(stage).init(1);
      empty(stage).init(kTiles * 4);
    }
    all_received.init(1);
    fence_barrier_init();
    for (int step = 0; step < filled; ++step) copy_weights(step, step);
    if (splits > 1) {
      int quads = 0;
      for (int quad = split; quad * 8 < p.rows; quad += splits) ++quads;
      all_received.arrive_and_expect(quads * (splits - 1) * S::kQuadBytes);
    }
  }
  __syncwarp();
  __syncthreads();
  if (splits > 1) arrive_at_cluster();  // to be waited for before anything is sent
  begin_after_previous_kernel();

  if (warp == kTiles * 4) {
    if (copies) {
      for (int step = 0; step < filled; ++step) copy_x(step, step);
      int stage = 0;
      unsigned parity = 0;
      for (int step = filled; step < count; ++step) {
        empty(stage).wait(parity);
        copy_weights(stage, step);
        copy_x(stage, step);
        if (++stage == stages) stage = 0, parity ^= 1;
      }
    }
    __syncwarp();
    if (splits > 1) wait_for_cluster();
    return;
  }

  // Of this lane's results; in quad 0.
  const bool even = lane / 4 % 2 == 0;
  const int row = lane % 4 * 2 + (even ? 0 : 1);
  const int output = gated ? tile * (S::kOutputs / 2) + warp * 8 + lane / 8 * 2
                           : tile * S::kOutputs + warp * 16 + lane / 8 * 2;
  unsigned residual[S::kQuads][2] = {};
  if (p.residual != nullptr) {
    Owner owner;
#pragma unroll
    for (int quad = 0; quad < S::kQuads; ++quad, owner.advance(splits)) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = quad * 8 + row, o = output + half * 8;
        if (owner.block == split && r < p.rows && o < p.outputs) {
          residual[quad][half] =
              *reinterpret_cast<const unsigned*>(p.residual + r * p.residual_stride + o);
        }
      }
    }
  }

  float sums[kRows / 2];
  const unsigned own = warp / 4 * kTileOutputs * kRowBytes;
  int stage = 0, previous = 0;
  unsigned parity = 0;
  for (int step = 0; step < count; ++step) {
    full(stage).wait(parity);
    const unsigned at = base + stage * S::kStageBytes;
    const auto a = wgmma_factor(at + own, 16, 1024);
    const auto b = wgmma_factor(at + S::kWeightBytes, 16, 1024);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kStageInputs / 16; ++k) {
      wgmma<T>(sums, wgmma_factor_behind(a, k * 32), wgmma_factor_behind(b, k * 32),
               step > 0 || k > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (step > 0 && lane == 0) empty(previous).arrive();
    previous = stage;
    if (++stage == stages) stage = 0, parity ^= 1;
  }
  wgmma_wait<0>();
  hold(sums);

  if (splits > 1) {
    wait_for_cluster();
    const unsigned here = received + threadIdx.x * 16;
    Owner owner;
#pragma unroll
    for (int quad = 0; quad < S::kQuads; ++quad, owner.advance(splits)) {
      if (owner.block == split || quad * 8 >= p.rows) continue;
      send(address_in(here + (owner.slots + split) * S::kQuadBytes, owner.block),
           make_float4(sums[4 * quad], sums[4 * quad + 1], sums[4 * quad + 2], sums[4 * quad + 3]),
           address_in(all_received.address, owner.block));
    }
    all_received.wait(0);
  }
  Owner owner;
#pragma unroll
  for (int quad = 0; quad < S::kQuads; ++quad, owner.advance(splits)) {
    if (owner.block != split || quad * 8 >= p.rows) continue;
    float4 sum =
        make_float4(sums[4 * quad], sums[4 * quad + 1], sums[4 * quad + 2], sums[4 * quad + 3]);
    if (splits > 1) {
      const float4 mine = sum;
      sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
      for (int other = 0; other < splits; ++other) {
        float4 part;
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(part.x), "=f"(part.y), "=f"(part.z), "=f"(part.w)
                     : "r"(received + (owner.slots + other) * S::kQuadBytes + threadIdx.x * 16)
                     : "memory");
        if (other == split) part = mine;
        sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
      }
    }
    if (gated) {
      const auto gate = [](float g, float up) {
        return __fmul_rn(activate<T, Activation::silu>(widen(narrow<T>(g))), widen(narrow<T>(up)));
      };
      const float2 pair = exchange(gate(sum.x, sum.z), gate(sum.y, sum.w), even);
      if (quad * 8 + row < p.rows && output < p.outputs)
        store_pair(p, quad * 8 + row, output, pair, 0);
      continue;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 pair = half == 0 ? exchange(sum.x, sum.y, even) : exchange(sum.z, sum.w, even);
      if (quad * 8 + row >= p.rows || output + half * 8 >= p.outputs) continue;
      store_pair(p, quad * 8 + row, output + half * 8, pair, residual[quad][half]);
    }
  }
#endif
}

}  // namespace nvllm::kernels::cuda::skinny
