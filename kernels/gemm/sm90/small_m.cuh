// Small-M GEMM: 17 to 128 rows times a weight of 16-bit floats on Hopper, bound by the reading of
// the weight, as long as enough of it is in flight and everything else happens meanwhile.
//
// A block makes kTiles * 64 outputs for all rows out of a share of the inputs; the blocks of a
// cluster share the inputs of a tile (split K). Weights and x come in stages of 64 inputs through a
// ring in shared memory, filled by bulk copies, emptied by kTiles warpgroups. The weight is the
// left operand of wgmma, so that few rows are few columns. The ring is filled with weights before
// the kernel waits for the one before it (see GemmWeight); x follows.
//
// In the end a warpgroup has its sums in quads: quad q are four floats of each thread, of rows 8 q
// to 8 q + 7 (wgmma.cuh). Block q % k_splits of a cluster makes results of it: all blocks send
// theirs to its shared memory, and it adds them up in ascending order. So results are reproducible,
// and a row's do not depend on the others. Little else happens then, so the time is that of a
// lane's instructions, one after the other, and of their loads: the code is short, and a warp's
// results are spread over its lanes.
//
// Quantized weights are the same kernel with other stages (quantized_weights.cuh).
//
// RMSNorms between such GEMMs are deferred (deferred_norm.cuh).
//
// Between a block's last load of weights and the next kernel's first one the memory would be idle:
// keys and values that attention reads soon are prefetched into the L2 then
// (kernels/gemm/kv_prefetch.h).
#pragma once

#include "kernels/common/sm90/sync.cuh"
#include "kernels/common/sm90/tma.cuh"
#include "kernels/gemm/kv_prefetch.h"
#include "kernels/gemm/sm80/gemm_params.cuh"
#include "kernels/gemm/sm90/deferred_norm.cuh"
#include "kernels/gemm/sm90/quantized_weights.cuh"
#include "kernels/gemm/sm90/weight_stages.cuh"
#include "kernels/pointwise/sm80/activation.cuh"

namespace nvllm::kernels::cuda::small_m {

using staged::kAlignment, staged::kTileOutputs;

// Weights of 16-bit floats, which tensor cores read in shared memory.
template <typename T>
struct FloatWeights {
  using Element = T;
  static constexpr bool kInRegisters = false;
  static constexpr int kStageInputs = staged::kStageInputs;
  static constexpr int kRowBytes = staged::kRowBytes;  // of an output in a stage
};

// x comes in boxes of 64 inputs.
inline constexpr int kBoxInputs = 64, kBoxRowBytes = kBoxInputs * 2;

template <typename Weights, int kTiles, int kRows>
struct Shape {
  static constexpr int kOutputs = kTiles * kTileOutputs;
  static constexpr int kConsumers = kTiles * 128;  // threads; then come those that copy
  // With few rows a warp of its own copies x: to ask for both takes longer than to multiply them.
  static constexpr int kCopying = kRows <= 32 ? 2 : 1;
  static constexpr int kThreads = kConsumers + kCopying * 32;
  static constexpr int kBoxes = Weights::kStageInputs / kBoxInputs;
  static constexpr int kBoxBytes = kRows * kBoxRowBytes;
  static constexpr int kWeightBytes = kOutputs * Weights::kRowBytes;
  static constexpr int kStageBytes = kWeightBytes + kBoxes * kBoxBytes;
  static constexpr int kQuads = kRows / 8;
  static constexpr int kQuadBytes = kConsumers * 16;  // of one block's sums
};

// A quad's sums of all blocks, and what keeps lanes apart that read two quads.
__host__ __device__ constexpr int quad_stride(int quad_bytes, int splits) {
  return splits * quad_bytes + 64;
}

// Words of scales of an output in shared memory: odd, so that neighbours lie in different banks.
__host__ __device__ constexpr int scale_pitch(int groups) {
  return groups | 1;
}

// Where a block has what: the ring, the sums that results are made of, each warp's sums of rows'
// squares, barriers, and of a quantized weight the scales of so many groups. A block that has all
// sums itself puts them where the ring was.
template <typename Weights, int kTiles, int kRows>
struct SharedLayout {
  int sums, squares, barriers, scales, end;

  __host__ __device__ constexpr SharedLayout(int stages, int splits, int groups) {
    using S = Shape<Weights, kTiles, kRows>;
    const int ring = stages * S::kStageBytes;
    const int bytes = (S::kQuads + splits - 1) / splits * quad_stride(S::kQuadBytes, splits);
    sums = splits == 1 ? 0 : ring;
    squares = ring > sums + bytes ? ring : sums + bytes;
    barriers = squares + kTiles * 4 * kRows * 4;
    scales = barriers + 8 + stages * 16;
    end = scales + (Weights::kInRegisters ? S::kOutputs * scale_pitch(groups) * 4 : 0);
  }
};
template <typename Weights, int kTiles, int kRows>
constexpr int shared_bytes(int stages, int splits, int groups) {
  return kAlignment + SharedLayout<Weights, kTiles, kRows>(stages, splits, groups).end;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Prefetches the share of block blockIdx.x of gridDim.x into the L2, and waits for nothing. All
// lanes of a warp call it, once the table and the lengths have been written.
__device__ __forceinline__ void prefetch_kv(const KvPieces& pieces, int lane) {
  for (int i = blockIdx.x + lane * gridDim.x; i < pieces.pieces(); i += 32 * gridDim.x) {
    const char* const piece = pieces.piece(i);
    if (piece == nullptr) continue;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(piece),
                 "r"(pieces.piece_bytes())
                 : "memory");
  }
}

// Eight neighbouring outputs of a row.
template <typename T>
__device__ __forceinline__ void add_to(Floats<T>& eight, const Vector<T>& more) {
  const Floats<T> floats = widen(more);
#pragma unroll
  for (int i = 0; i < 8; ++i) eight.element[i] += floats.element[i];
}
template <typename T>
__device__ __forceinline__ void scale(Floats<T>& eight, float factor) {
#pragma unroll
  for (int i = 0; i < 8; ++i) eight.element[i] *= factor;
}
template <typename T>
__device__ __forceinline__ void store_eight(const GemmParams<T>& p, int row, int output,
                                            const Floats<T>& eight) {
  const long long place = row * p.out_stride + output;
  if (p.float_out) {
    const float* from = eight.element;
    float4* out = reinterpret_cast<float4*>(static_cast<float*>(p.out) + place);
    out[0] = make_float4(from[0], from[1], from[2], from[3]);
    out[1] = make_float4(from[4], from[5], from[6], from[7]);
  } else {
    store_vector(static_cast<T*>(p.out) + place, narrow(eight));
  }
}

// Sums of all splits, of which a warp makes results: 16 outputs, or 8 gates and what they let
// through, of the quads of its block. `at`: where its own of the first quad are, 16 bytes of each
// thread, four threads for an output and the one 8 further: of two rows each, the first output's
// before the other's. The next quad's are `stride` bytes further, another block's `part` bytes.
struct Quads {
  unsigned at;
  int stride, part;
  int split, splits;  // its quads are split, split + splits, ...
};

// A lane has eight outputs of a row at a time, all 32 those of two quads.
template <typename T>
class Plain {
 public:
  __device__ __forceinline__ Plain(const GemmParams<T>& p, const DeferredNorms<T>& norms,
                                   int output, int split, int splits)
      : output_(output + threadIdx.x % 2 * 8),
        row_((lane() / 16 * splits + split) * 8 + lane() / 2 % 8) {
    if (output_ >= p.outputs) return;
    load_residual(p);
    if (norms.next_squares != nullptr) weight_ = load_vector(norms.next_weight + output_);
  }

  // `factors`: of rows, if their norm was deferred. The next norm's rows go to norms.next_weighted,
  // and the squares of each row's 16 outputs to `squares`.
  __device__ __forceinline__ void store(const GemmParams<T>& p, const DeferredNorms<T>& norms,
                                        const Quads& quads, unsigned factors, unsigned squares) {
    const int row_of_quad = lane() / 2 % 8;
    unsigned at = quads.at + lane() / 16 * quads.stride + row_of_quad / 2 * 16 +
                  (lane() % 2 * 2 + row_of_quad % 2) * 4;
#pragma unroll 1
    for (int quad = quads.split; quad * 8 < p.rows; quad += 2 * quads.splits) {
      const bool inside = row_ < p.rows && output_ < p.outputs;
      float square = 0;
      if (inside) {
        Floats<T> sums{};
#pragma unroll 2
        for (int split = 0; split < quads.splits; ++split) {
#pragma unroll
          for (int i = 0; i < 8; ++i)
            sums.element[i] += load_shared_float(at + split * quads.part + i * 64);
        }
        if (norms.own_squares != nullptr) scale(sums, load_shared_float(factors + row_ * 4));
        if (p.bias != nullptr) add_to(sums, load_vector(p.bias + output_));
        if (p.residual != nullptr) add_to(sums, residual_);
        store_eight(p, row_, output_, sums);
        if (norms.next_squares != nullptr) {
          const Vector<T> rounded = narrow(sums);
          square = rms_norm_vector(rounded);
          store_vector(norms.next_weighted + static_cast<long long>(row_) * p.outputs + output_,
                       rms_norm_apply(rounded, 1.0f, weight_));
        }
      }
      if (norms.next_squares != nullptr) {
        square += __shfl_xor_sync(0xffffffffu, square, 1);
        if (inside && lane() % 2 == 0) store_shared(squares + row_ * 4, square);
      }
      row_ += quads.splits * 16;
      at += 2 * quads.stride;
      if (output_ < p.outputs) load_residual(p);
    }
  }

 private:
  static __device__ __forceinline__ int lane() {
    return threadIdx.x % 32;
  }
  __device__ __forceinline__ void load_residual(const GemmParams<T>& p) {
    if (p.residual != nullptr && row_ < p.rows)
      residual_ = load_vector(p.residual + row_ * p.residual_stride + output_);
  }

  int output_, row_;
  Vector<T> residual_, weight_;  // loaded while the tensor cores work
};

// A lane has 8 gates of one or two rows at a time.
template <typename T, int kRowsOfLane>
__device__ __forceinline__ void store_gated(const GemmParams<T>& p, bool scaled, int output,
                                            const Quads& quads, unsigned factors) {
  constexpr int kLanes = 8 / kRowsOfLane;  // of a quad
  const int lane = threadIdx.x % 32;
  int row = (lane / kLanes * quads.splits + quads.split) * 8 + lane % kLanes * kRowsOfLane;
  unsigned at = quads.at + lane / kLanes * quads.stride + row % 8 / 2 * 16;
  if (output >= p.outputs) return;
#pragma unroll 1
  for (; row < p.rows; row += quads.splits * 8 * (32 / kLanes), at += 32 / kLanes * quads.stride) {
    Floats<T> gates[kRowsOfLane] = {}, ups[kRowsOfLane] = {};
#pragma unroll 1
    for (int split = 0; split < quads.splits; ++split) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float4 sums = load_shared(at + split * quads.part + i * 64);
        if constexpr (kRowsOfLane == 2) {
          gates[0].element[i] += sums.x, gates[1].element[i] += sums.y;
          ups[0].element[i] += sums.z, ups[1].element[i] += sums.w;
        } else {
          gates[0].element[i] += lane % 2 == 0 ? sums.x : sums.y;
          ups[0].element[i] += lane % 2 == 0 ? sums.z : sums.w;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRowsOfLane; ++r) {
      if (row + r >= p.rows) break;
      if (scaled) {
        const float factor = load_shared_float(factors + (row + r) * 4);
        scale(gates[r], factor), scale(ups[r], factor);
      }
      store_vector(static_cast<T*>(p.out) + (row + r) * p.out_stride + output,
                   activate_gated<Activation::silu>(narrow(gates[r]), narrow(ups[r])));
    }
  }
}

// Which block makes results of a quad, and where it has the sums of it.
struct Owner {
  int block = 0, place = 0;

  __device__ __forceinline__ void advance(int splits, int stride) {
    if (++block < splits) return;
    block = 0;
    place += stride;
  }
};

#endif

// Copies the scales of a block's outputs and groups, asynchronously: of the threads that multiply.
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
// in boxes of 64 inputs, a tile's groups or kRows rows. `stages`: of the ring, those of all steps,
// or at least 2. gated: the first 8 outputs of a group are gates of the second 8, and p.outputs are
// gates only. norms: x's or the next one, not both. groups: of a quantized weight, whose scales a
// block has room for.
template <typename Weights, int kTiles, int kRows>
__global__ void __launch_bounds__(Shape<Weights, kTiles, kRows>::kThreads, 1)
    small_m_kernel(const __grid_constant__ CUtensorMap weight,
                   const __grid_constant__ CUtensorMap x,
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
  const LeavesFirst leaves_first;  // the L2: nobody else reads them
  const auto copy_weights = [&](int stage, int step) {
    full(stage).arrive_and_expect(S::kStageBytes);
    copy_box(base + stage * S::kStageBytes, weight, (first + step) * (Weights::kRowBytes / 2), 0, 0,
             tile * (S::kOutputs / 16), full(stage), leaves_first);
  };
  const auto copy_x = [&](int stage, int step) {
#pragma unroll
    for (int box = 0; box < S::kBoxes; ++box) {
      copy_box(base + stage * S::kStageBytes + S::kWeightBytes + box * S::kBoxBytes, x,
               (first + step) * kStageInputs + box * kBoxInputs, 0, 0, full(stage));
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
  if (Weights::kInRegisters && threadIdx.x < S::kConsumers) {
    copy_scales<S::kOutputs, S::kConsumers>(scales, base + layout.scales, tile, p.outputs, gated,
                                            first_group, groups);
  }
  __syncthreads();
  if (splits > 1) arrive_at_cluster();  // to be waited for before anything is sent
  wait_for_previous_kernel();

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
        if (copies_x) copy_x(stage, step);  // its bytes may be there before they are announced
        if (++stage == stages) stage = 0, parity ^= 1;
      }
      let_next_kernel_come();  // its weights come after these
    }
    __syncwarp();
    if (warp == kTiles * 4) prefetch_kv(prefetch_pieces, lane);
    __syncwarp();
    if (splits > 1) wait_for_cluster();
    return;
  }

  // Of this warp's results: from which output on.
  const int output = gated ? tile * (S::kOutputs / 2) + warp * 8 : tile * S::kOutputs + warp * 16;
  Plain<T> plain(p, norms, gated ? p.outputs : output, split, splits);  // gates ask for nothing
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
  int stage = 0;
  unsigned parity = 0;
  const auto next_stage = [&] {
    if (++stage == stages) stage = 0, parity ^= 1;
  };
  if constexpr (Weights::kInRegisters) {
    const int row = warp * 16 + lane / 4;
    const int pitch = scale_pitch(groups) * 4;
    const unsigned row_scales[2] = {base + layout.scales + row * pitch,
                                    base + layout.scales + (row + 8) * pitch};
    const unsigned block = row * Weights::kRowBytes + lane % 4 * 16;
    asm volatile("cp.async.wait_all;" ::: "memory");
    sync_threads(1, S::kConsumers);
    for (int step = 0; step < count; ++step) {
      full(stage).wait(parity);
      const unsigned at = base + stage * S::kStageBytes;
      // Of the block's inputs, counted from the first one of its first group.
      const int input = (first + step) * kStageInputs - (first_group << scales.group_bits);
      typename Weights::Fragments fragments;
      fragments.load(at + block, row_scales, input, scales.group_bits);
      Weights::multiply(sums, fragments, at + S::kWeightBytes, S::kBoxBytes, step == 0);
      // The registers are free for the next stage only then; other warpgroups multiply meanwhile.
      wgmma_wait<0>();
      if (lane == 0) empty(stage).arrive();
      next_stage();
    }
  } else {
    for (int step = 0, previous = 0; step < count; ++step) {
      full(stage).wait(parity);
      const unsigned at = base + stage * S::kStageBytes;
      const auto a = wgmma_factor(at + own, 16, 1024);
      const auto b = wgmma_factor(at + S::kWeightBytes, 16, 1024);
      staged::multiply<T>(sums, a, b, step);
      wgmma_wait<1>();
      if (step > 0 && lane == 0) empty(previous).arrive();
      previous = stage;
      next_stage();
    }
  }
  wgmma_wait<0>();
  hold(sums);

  sync_threads(1, S::kConsumers);  // nobody multiplies any more, and factors of rows are there
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
