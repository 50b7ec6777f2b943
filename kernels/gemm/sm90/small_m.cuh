// Small-M GEMM: 17 to 128 rows times a weight of 16-bit floats on Hopper, bound by reading the
// weight as long as enough of it is in flight and everything else overlaps.
//
// A block computes kTiles * 64 outputs for all rows from a part of the inputs; the blocks of a
// cluster split the inputs of a tile (split K). Bulk copies load weights and x in stages of 64
// inputs into a ring in shared memory, from which kTiles warpgroups read. The weight is operand A
// of wgmma, so that few rows are few columns. The ring is filled with weights before the kernel
// waits for the previous one (see GemmWeight); x follows.
//
// At the end a warpgroup has its sums in quads: quad q is four floats of each thread, of rows 8 q
// to 8 q + 7 (wgmma.cuh). Block q % k_splits of a cluster computes the results of quad q: all
// blocks send their sums to its shared memory, and it adds them in ascending order. So results are
// reproducible, and a row's do not depend on the others. Since little overlaps this phase, its time
// is that of a lane's dependent instructions and loads: the code is short, and a warp's results are
// spread over its lanes.
//
// Quantized weights use the same kernel with other stages: they are dequantized to 16-bit floats in
// registers, or fp8 is multiplied by x in fp8 (quantized_weights.cuh).
//
// RMSNorms between such GEMMs are deferred (deferred_norm.cuh).
//
// Between a block's last weight load and the next kernel's first one the memory would be idle:
// meanwhile keys and values that attention reads soon are prefetched into the L2
// (kernels/gemm/kv_prefetch.h).
#pragma once

#include "kernels/common/sm90/sync.cuh"
#include "kernels/common/sm90/tma.cuh"
#include "kernels/gemm/kv_prefetch.h"
#include "kernels/gemm/sm80/gemm_params.cuh"
#include "kernels/gemm/sm90/deferred_norm.cuh"
#include "kernels/gemm/sm90/quantized_weights.cuh"
#include "kernels/gemm/sm90/small_m_results.cuh"
#include "kernels/gemm/sm90/weight_stages.cuh"

namespace nvllm::kernels::cuda::small_m {

using staged::kAlignment, staged::kTileOutputs;

// Weights of 16-bit floats, which tensor cores read from shared memory.
template <typename T>
struct FloatWeights {
  using Element = T;
  static constexpr Operands kOperands = Operands::floats;
  static constexpr int kStageInputs = staged::kStageInputs, kInputBytes = 2;  // of x
  static constexpr int kRowBytes = staged::kRowBytes;  // of an output in a stage
};

// x is copied in boxes of this many bytes of each row.
inline constexpr int kBoxRowBytes = 128;

template <typename Weights, int kTiles, int kRows>
struct Shape {
  static constexpr int kOutputs = kTiles * kTileOutputs;
  static constexpr int kConsumers = kTiles * 128;  // threads; then come those that copy
  // With few rows a separate warp copies x: issuing both takes longer than multiplying them.
  static constexpr int kCopying = kRows <= 32 ? 2 : 1;
  static constexpr int kThreads = kConsumers + kCopying * 32;
  static constexpr int kStageXBytes = Weights::kStageInputs * Weights::kInputBytes;  // of a row
  static constexpr int kBoxes = kStageXBytes / kBoxRowBytes;
  static constexpr int kBoxBytes = kRows * kBoxRowBytes;
  static constexpr int kWeightBytes = kOutputs * Weights::kRowBytes;
  static constexpr int kStageBytes = kWeightBytes + kBoxes * kBoxBytes;
  // The scales of x's rows, in a separate part of a stage.
  static constexpr int kRowScaleBytes = Weights::kOperands == Operands::fp8 ? kRows * 4 : 0;
  static constexpr int kQuads = kRows / 8;
  static constexpr int kQuadBytes = kConsumers * 16;  // of one block's sums
};

// The size of a quad's sums of all blocks, with padding against bank conflicts between two quads.
__host__ __device__ constexpr int quad_stride(int quad_bytes, int splits) {
  return splits * quad_bytes + 64;
}

// Words of scales per output in shared memory: odd, so that adjacent outputs lie in different
// banks.
__host__ __device__ constexpr int scale_pitch(int groups) {
  return groups | 1;
}

// The shared memory layout of a block: the ring, the sums from which results are computed, each
// warp's sums of rows' squares, scales of rows of x, barriers, and for a quantized weight the
// scales of its groups. Without split K the sums reuse the ring's memory.
template <typename Weights, int kTiles, int kRows>
struct SharedLayout {
  int sums, squares, row_scales, barriers, scales, end;

  __host__ __device__ constexpr SharedLayout(int stages, int splits, int groups) {
    using S = Shape<Weights, kTiles, kRows>;
    const int ring = stages * S::kStageBytes;
    const int bytes = (S::kQuads + splits - 1) / splits * quad_stride(S::kQuadBytes, splits);
    sums = splits == 1 ? 0 : ring;
    squares = ring > sums + bytes ? ring : sums + bytes;
    row_scales = squares + kTiles * 4 * kRows * 4;
    barriers = row_scales + stages * S::kRowScaleBytes;
    scales = barriers + 8 + stages * 16;
    const bool scaled = Weights::kOperands != Operands::floats;
    end = scales + (scaled ? S::kOutputs * scale_pitch(groups) * 4 : 0);
  }
};
template <typename Weights, int kTiles, int kRows>
constexpr int shared_bytes(int stages, int splits, int groups) {
  return kAlignment + SharedLayout<Weights, kTiles, kRows>(stages, splits, groups).end;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Prefetches the share of block blockIdx.x of gridDim.x into the L2 without waiting. All lanes of a
// warp call it, once the table and the lengths have been written.
__device__ __forceinline__ void prefetch_kv(const KvPieces& pieces, int lane) {
  for (int i = blockIdx.x + lane * gridDim.x; i < pieces.pieces(); i += 32 * gridDim.x) {
    const char* const piece = pieces.piece(i);
    if (piece == nullptr) continue;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(piece),
                 "r"(pieces.piece_bytes())
                 : "memory");
  }
}

#endif

// Copies the scales of a block's outputs and groups asynchronously; called by the consumer threads.
template <int kOutputs, int kThreads>
__device__ __forceinline__ void copy_scales(const ScaleWords& scales, unsigned to, int tile,
                                            int outputs, bool gated, int first_group, int groups) {
  for (int i = threadIdx.x; i < kOutputs * groups; i += kThreads) {
    const int row = i / groups, group = i % groups;
    const int output = gated
                           ? row % 16 / 8 * outputs + tile * (kOutputs / 2) + row / 16 * 8 + row % 8
                           : tile * kOutputs + row;
    const bool inside = first_group + group < scales.groups &&
                        (gated ? output - row % 16 / 8 * outputs < outputs : output < outputs);
    const unsigned at = to + (row * scale_pitch(groups) + group) * 4;
    const unsigned* const from = scales.words +
                                 static_cast<long long>(inside ? output : 0) * scales.groups +
                                 first_group + (inside ? group : -first_group);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from),
                 "r"(inside ? 4 : 0)
                 : "memory");
  }
}

// grid: tiles * splits, clusters of splits. `weight` [groups, 2, 8, inputs], `x` [1, rows, inputs]
// in boxes of 128 bytes, a tile's groups or kRows rows. row_scales: of x in fp8, [inputs / 128,
// kRows]. `stages`: of the ring, all steps, or at least 2. gated: a group of outputs is 8 gate
// rows, then 8 up rows, and p.outputs counts gate rows. norms: x's or the next one, not both.
// groups: of a quantized weight, the number whose scales fit in a block.
template <typename Weights, int kTiles, int kRows>
__global__ void __launch_bounds__(Shape<Weights, kTiles, kRows>::kThreads, 1)
    small_m_kernel(const __grid_constant__ CUtensorMap weight,
                   const __grid_constant__ CUtensorMap x, const float* row_scales,
                   const GemmParams<typename Weights::Element> p,
                   const DeferredNorms<typename Weights::Element> norms, int splits, int stages,
                   bool gated, const KvPieces prefetch_pieces, const ScaleWords scales,
                   int groups) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using T = typename Weights::Element;
  using S = Shape<Weights, kTiles, kRows>;
  constexpr int kStageInputs = Weights::kStageInputs;
  extern __shared__ char memory[];
  const unsigned base = (static_cast<unsigned>(__cvta_generic_to_shared(memory)) + kAlignment - 1) &
                        ~(kAlignment - 1);
  const SharedLayout<Weights, kTiles, kRows> layout(stages, splits, groups);
  const unsigned barriers = base + layout.barriers;
  const Barrier all_received{barriers};
  const auto full = [&](int stage) { return Barrier{barriers + 8 + stage * 8}; };
  const auto empty = [&](int stage) { return Barrier{barriers + 8 + (stages + stage) * 8}; };

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int split = blockIdx.x % splits, tile = blockIdx.x / splits;
  const int all = (p.inputs + kStageInputs - 1) / kStageInputs;
  const int first = all * split / splits, count = all * (split + 1) / splits - first;
  const int filled = min(stages, count);
  const bool copies = warp == kTiles * 4 && lane == 0;
  const bool copies_x = warp == kTiles * 4 + S::kCopying - 1 && lane == 0;
  const EvictFirst evict_first;  // the weights are read once
  const auto copy_weights = [&](int stage, int step) {
    full(stage).arrive_and_expect(S::kStageBytes + S::kRowScaleBytes);
    copy_box(base + stage * S::kStageBytes, weight, (first + step) * (Weights::kRowBytes / 2), 0, 0,
             tile * (S::kOutputs / 16), full(stage), evict_first);
  };
  const auto copy_x = [&](int stage, int step) {
#pragma unroll
    for (int box = 0; box < S::kBoxes; ++box) {
      copy_box(base + stage * S::kStageBytes + S::kWeightBytes + box * S::kBoxBytes, x,
               ((first + step) * S::kStageXBytes + box * kBoxRowBytes) / 2, 0, 0, full(stage));
    }
    if constexpr (S::kRowScaleBytes > 0) {
      copy_bytes(base + layout.row_scales + stage * S::kRowScaleBytes,
                 row_scales + (first + step) * kRows, S::kRowScaleBytes, full(stage));
    }
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
  [[maybe_unused]] const int first_group = first * kStageInputs >> scales.group_bits;
  if (Weights::kOperands != Operands::floats && threadIdx.x < S::kConsumers) {
    copy_scales<S::kOutputs, S::kConsumers>(scales, base + layout.scales, tile, p.outputs, gated,
                                            first_group, groups);
  }
  __syncthreads();
  if (splits > 1) arrive_at_cluster();  // the wait is before the first send
  wait_on_dependent_grids();

  if (warp >= kTiles * 4) {
    if (copies || copies_x) {
      if (copies_x) {
        for (int step = 0; step < filled; ++step) copy_x(step, step);
      }
      int stage = 0;
      unsigned parity = 0;
      for (int step = filled; step < count; ++step) {
        empty(stage).wait(parity);
        if (copies) copy_weights(stage, step);
        if (copies_x) copy_x(stage, step);  // its bytes may arrive before they are announced
        if (++stage == stages) stage = 0, parity ^= 1;
      }
      launch_dependent_grids();  // its weights are loaded after these
    }
    __syncwarp();
    if (warp == kTiles * 4) prefetch_kv(prefetch_pieces, lane);
    __syncwarp();
    if (splits > 1) wait_for_cluster();
    return;
  }

  // The first output of this warp's results.
  const int output = gated ? tile * (S::kOutputs / 2) + warp * 8 : tile * S::kOutputs + warp * 16;
  Plain<T> plain(p, norms, gated ? p.outputs : output, split, splits);  // no residual if gated
  const unsigned squares = base + layout.squares;
  if (norms.own_squares != nullptr) {
    add_squares<S::kConsumers, kRows>(norms.own_squares, p.inputs / kSquaresColumns, squares);
    sync_threads(1, S::kConsumers);
    const int row = threadIdx.x;
    if (row < kRows) {
      const float sum = squares_of<kTiles * 4, kRows>(squares, row);
      store_shared(squares + row * 4, rms_norm_scale(sum, p.inverse_inputs, p.epsilon));
    }
  }

  float sums[kRows / 2];
  [[maybe_unused]] const unsigned own = warp / 4 * kTileOutputs * Weights::kRowBytes;
  [[maybe_unused]] unsigned output_scales[2];  // of this thread's, where they are
  if constexpr (Weights::kOperands != Operands::floats) {
    const int row = warp * 16 + lane / 4, pitch = scale_pitch(groups) * 4;
    output_scales[0] = base + layout.scales + row * pitch;
    output_scales[1] = output_scales[0] + 8 * pitch;
    asm volatile("cp.async.wait_all;" ::: "memory");
    sync_threads(1, S::kConsumers);
  }
  int stage = 0;
  unsigned parity = 0;
  const auto next_stage = [&] {
    if (++stage == stages) stage = 0, parity ^= 1;
  };
  if constexpr (Weights::kOperands == Operands::dequantized) {
    const unsigned block = (warp * 16 + lane / 4) * Weights::kRowBytes + lane % 4 * 16;
    for (int step = 0; step < count; ++step) {
      full(stage).wait(parity);
      const unsigned at = base + stage * S::kStageBytes;
      // Relative to the first input of the block's first group.
      const int input = (first + step) * kStageInputs - (first_group << scales.group_bits);
      typename Weights::Fragments fragments;
      fragments.load(at + block, output_scales, input, scales.group_bits);
      Weights::multiply(sums, fragments, at + S::kWeightBytes, S::kBoxBytes, step == 0);
      // Only then are the registers free for the next stage; other warpgroups multiply meanwhile.
      wgmma_wait<0>();
      if (lane == 0) empty(stage).arrive();
      next_stage();
    }
  } else if constexpr (Weights::kOperands == Operands::fp8) {
#pragma unroll
    for (float& sum : sums) sum = 0;
    for (int step = 0; step < count; ++step) {
      full(stage).wait(parity);
      const unsigned at = base + stage * S::kStageBytes;
      Weights::template add<kRows>(sums, at + own, at + S::kWeightBytes,
                                   base + layout.row_scales + stage * S::kRowScaleBytes,
                                   make_float2(load_shared_float(output_scales[0] + step * 4),
                                               load_shared_float(output_scales[1] + step * 4)));
      if (lane == 0) empty(stage).arrive();
      next_stage();
    }
  } else {
    for (int step = 0, previous = 0; step < count; ++step) {
      full(stage).wait(parity);
      const unsigned at = base + stage * S::kStageBytes;
      const auto a = wgmma_descriptor(at + own, 16, 1024);
      const auto b = wgmma_descriptor(at + S::kWeightBytes, 16, 1024);
      staged::multiply<T>(sums, a, b, step);
      wgmma_wait<1>();
      if (step > 0 && lane == 0) empty(previous).arrive();
      previous = stage;
      next_stage();
    }
  }
  wgmma_wait<0>();
  hold(sums);

  sync_threads(1, S::kConsumers);  // multiplication has ended, and factors of rows are complete
  if (splits > 1) wait_for_cluster();
  const int stride = quad_stride(S::kQuadBytes, splits);
  const unsigned own_sums = base + layout.sums + split * S::kQuadBytes + threadIdx.x * 16;
  Owner owner;
#pragma unroll
  for (int quad = 0; quad < S::kQuads; ++quad, owner.advance(splits, stride)) {
    if (quad * 8 >= p.rows) break;
    const unsigned to = own_sums + owner.place;
    const float4 part =
        make_float4(sums[4 * quad], sums[4 * quad + 1], sums[4 * quad + 2], sums[4 * quad + 3]);
    if (owner.block == split) {
      store_shared(to, part);
    } else {
      send(address_in(to, owner.block), part, address_in(all_received.address, owner.block));
    }
  }
  __syncwarp();
  if (splits > 1) all_received.wait(0);

  const Quads quads{base + layout.sums + warp * 512, stride, S::kQuadBytes, split, splits};
  if (gated) {
    store_gated<T, kRows <= 32 ? 1 : 2>(p, norms.own_squares != nullptr, output, quads, squares);
  } else {
    plain.store(p, norms, quads, squares, squares + warp * kRows * 4);
  }
  if (norms.next_squares == nullptr) return;
  sync_threads(2 + warp / 4, 128);
  const int own_row = threadIdx.x % 128, part = tile * kTiles + warp / 4;
  if (own_row >= p.rows || own_row / 8 % splits != split) return;
  if (part * kSquaresColumns >= p.outputs) return;
  norms.next_squares[part * kSquaresRows + own_row] =
      squares_of<4, kRows>(squares + warp / 4 * 4 * kRows * 4, own_row);
#endif
}

}  // namespace nvllm::kernels::cuda::small_m
