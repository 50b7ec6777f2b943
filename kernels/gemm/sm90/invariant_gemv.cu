// GEMV with each sum as one chain over K (GemmOptions::invariant), on Hopper: up to 16 rows by a
// weight of 16-bit floats, with the bits of ../sm80/invariant_gemv.cuh; fuses an RMSNorm prologue
// and a SiLU-and-mul epilogue.
//
// A consumer warp computes a tile of 8 outputs for all rows (gated: 8 gate rows and their up rows)
// and all inputs, 16 at a time, in one accumulator. The chain of a tile takes K / 16 dependent
// instructions, and everything else overlaps it: a block has as many consumers as are needed for
// all blocks to run at once, and one more warp that issues bulk copies for all of them into a ring
// of stages. A stage has kGroups times 64 inputs of the block's outputs and of the rows of x. The
// ring is filled with weights before the kernel waits for the previous one (see GemmWeight).
//
// With an RMSNorm prologue all warps of a block, and some that do nothing else, first write the
// normed rows to shared memory, with the bits of kernels/pointwise/sm80/rmsnorm.cuh; stages then
// hold only weights.
#include <algorithm>
#include <array>

#include "device/cuda/stream.h"
#include "kernels/common/cuda_arch.h"
#include "kernels/common/sm90/sync.cuh"
#include "kernels/common/sm90/tma.cuh"
#include "kernels/gemm/sm80/gemv.cuh"
#include "kernels/gemm/sm90/entry_points.h"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kGroupInputs = 64;  // of a row of a bulk copy
constexpr int kRowBytes = kGroupInputs * 2;
constexpr int kAlignment = 1024;
// Max. consumers of a block, and their number if not all blocks run at once anyway.
constexpr int kMaxConsumers = 12, kUsualConsumers = 8;
constexpr int kMinNormWarps = 8;
// Stages are longer if a block has fewer tiles; the longest need many registers, which only a GEMM
// without prologue and epilogue has.
constexpr int kFewTiles = 3, kSomeTiles = 12;
constexpr int groups_for(int tiles, bool plain) {
  return plain && tiles <= kFewTiles ? 4 : tiles <= kSomeTiles ? 2 : 1;
}
// Max. warps of a block.
constexpr int max_warps(bool gated, int groups) {
  const int tiles = groups == 4 ? kFewTiles : kSomeTiles;
  const int consumers = groups == 1 ? kMaxConsumers : tiles / (gated ? 2 : 1);
  return std::max(consumers + 1, kMinNormWarps);
}
// Bytes of the ring, so that a block of the previous or next kernel fits on the same
// multiprocessor.
constexpr int kRingBytes = 96 << 10;
constexpr int kMaxStages = 32;
// Every block repeats a fused norm: up to this many elements of x, and, even where a separate norm
// is cheap (loads_early_sm90()), for this few rows.
constexpr std::int64_t kMaxNormed = 16 << 10, kFewNormedRows = 2;

// Normed rows in shared memory: each is zero-padded to a whole stage, and further so that 8 rows
// lie in different banks.
__host__ __device__ constexpr int padded_inputs(int inputs) {
  return (inputs + 2 * kGroupInputs - 1) / (2 * kGroupInputs) * (2 * kGroupInputs);
}
__host__ __device__ constexpr int normed_stride(int inputs) {
  return padded_inputs(inputs) * 2 + 16;
}
// Followed by the norm's weights, sums and scales.
constexpr int normed_bytes(int rows, int inputs) {
  return rows * (normed_stride(inputs) + norm_slots(inputs) * 4 + 4) + inputs * 2;
}

#if __CUDA_ARCH__ >= 900

// As load_matrices() and multiply_add() of mma.cuh, but on arrays, and all volatile: the chain and
// the loads that it is interleaved with stay in the order in which they are written.
__device__ __forceinline__ void load_words(unsigned (&words)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

template <typename T>
__device__ __forceinline__ void multiply_in_order(float (&d)[4], unsigned a0, unsigned a1,
                                                  unsigned a2, unsigned a3, unsigned b0,
                                                  unsigned b1) {
  if constexpr (dtype_of<T> == DType::bf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

// Normalizes the rows of x; all threads of a block call it. The norm's weights are being copied to
// their place after the rows.
template <typename T>
__device__ __forceinline__ void norm_rows(const GemmParams<T>& p, char* rows) {
  constexpr int kAtOnce = 8;  // chunks that a warp has in flight
  const int stride = normed_stride(p.inputs), slots = norm_slots(p.inputs);
  const int vectors = p.inputs / 8, padded = padded_inputs(p.inputs) / 8;
  const auto* const weight = reinterpret_cast<const Vector<T>*>(rows + p.rows * stride);
  float* const sums = reinterpret_cast<float*>(rows + p.rows * stride + p.inputs * 2);
  float* const scales = sums + p.rows * slots;
  const auto at = [&](int row, int vector) -> Vector<T>& {
    return *reinterpret_cast<Vector<T>*>(rows + row * stride + vector * 16);
  };
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const int chunks = p.rows * slots;
  for (int first = warp; first < chunks; first += kAtOnce * warps) {
    Vector<T> x[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int chunk = first + i * warps, vector = chunk % slots * 32 + lane;
      x[i] = {};
      if (chunk < chunks && vector < vectors)
        x[i] = load_vector(p.x + chunk / slots * p.x_stride + vector * 8);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int chunk = first + i * warps, vector = chunk % slots * 32 + lane;
      if (chunk >= chunks) break;
      if (vector < padded) at(chunk / slots, vector) = x[i];
      const float sum = rms_norm_chunk(x[i]);
      if (lane == 0) sums[chunk] = sum;
    }
  }
  wait_for_async_copies();  // the norm's weights
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < p.rows) {
    const float squares = rms_norm_add_chunks(sums + threadIdx.x * slots, slots);
    scales[threadIdx.x] = rms_norm_scale(squares, p.inverse_inputs, p.epsilon);
  }
  __syncthreads();
  for (int row = 0; row < p.rows; ++row) {
    const float scale = scales[row];
    for (int v = threadIdx.x; v < vectors; v += blockDim.x)
      at(row, v) = rms_norm_apply(at(row, v), scale, weight[v]);
  }
  __syncthreads();
}

#endif

// grid: one block per `consumers` tiles. `weight` and `x`: [inputs / 64, rows, 64] in boxes of
// kGroups groups and the rows of all consumers, or kMaxRows. kGated: p.outputs counts gate rows.
template <typename T, bool kGated, int kMaxRows, bool kNormed, int kGroups>
__global__ void __launch_bounds__(max_warps(kGated, kGroups) * 32)
    invariant_gemv_kernel(const __grid_constant__ CUtensorMap weight,
                          const __grid_constant__ CUtensorMap x, const GemmParams<T> p,
                          int consumers, int stages) {
#if __CUDA_ARCH__ >= 900
  constexpr int kHalves = kMaxRows / 8, kTiles = kGated ? 2 : 1;
  constexpr int kXBytes = kNormed ? 0 : kGroups * kMaxRows * kRowBytes;
  const int box_bytes = kGroups * consumers * kTileOutputs * kRowBytes;  // of weights
  const int stage_bytes = kTiles * box_bytes + kXBytes;
  extern __shared__ char memory[];
  const unsigned unaligned = static_cast<unsigned>(__cvta_generic_to_shared(memory));
  const unsigned base = (unaligned + kAlignment - 1) & ~(kAlignment - 1);
  const unsigned barriers = base + stages * stage_bytes;
  const auto full = [&](int stage) { return Barrier{barriers + stage * 8}; };
  const auto empty = [&](int stage) { return Barrier{barriers + (stages + stage) * 8}; };
  [[maybe_unused]] char* const rows =
      memory + (base - unaligned) + stages * stage_bytes + kMaxStages * 16;

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int count = (p.inputs + kGroups * kGroupInputs - 1) / (kGroups * kGroupInputs);
  const int filled = min(stages, count);
  const bool copies = warp == consumers && lane == 0;
  const EvictFirst evict_first;  // the weights are read once
  const auto copy_weights = [&](int stage, int step) {
    full(stage).arrive_and_expect(stage_bytes);
    const int first = static_cast<int>(blockIdx.x) * consumers * kTileOutputs;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      copy_box(base + stage * stage_bytes + tile * box_bytes, weight, 0, first + tile * p.outputs,
               step * kGroups, full(stage), evict_first);
    }
  };
  const auto copy_x = [&](int stage, int step) {
    if constexpr (!kNormed) {
      copy_box(base + stage * stage_bytes + kTiles * box_bytes, x, 0, 0, step * kGroups,
               full(stage));
    }
  };
  if (copies) {
    if constexpr (!kNormed) prefetch(x);
    for (int stage = 0; stage < stages; ++stage) {
      full(stage).init(1);
      empty(stage).init(consumers);
    }
    fence_barrier_init();
    for (int step = 0; step < filled; ++step) copy_weights(step, step);
  }
  if constexpr (kNormed) {
    auto* const to = reinterpret_cast<Vector<T>*>(rows + p.rows * normed_stride(p.inputs));
    for (int v = threadIdx.x; v < p.inputs / 8; v += blockDim.x)
      copy_async(to + v, p.norm_weight + v * 8);
  }
  __syncthreads();
  pdl_begin();
  if constexpr (kNormed) norm_rows(p, rows);

  if (warp >= consumers) {
    if (!copies) return;
    for (int step = 0; step < filled; ++step) copy_x(step, step);
    int stage = 0;
    unsigned parity = 0;
    for (int step = filled; step < count; ++step) {
      empty(stage).wait(parity);
      copy_weights(stage, step);
      copy_x(stage, step);
      if (++stage == stages) stage = 0, parity ^= 1;
    }
    return;
  }

  // The residual loads overlap the multiplication.
  const int group = lane / 4;
  const int first_output = (static_cast<int>(blockIdx.x) * consumers + warp) * kTileOutputs;
  const int own_output = first_output + lane % 4 * 2;
  float residual[kHalves][2] = {};
  if constexpr (!kGated) {
#pragma unroll
    for (int i = 0; i < kHalves * 2; ++i) {
      const int row = i / 2 * 8 + group, output = own_output + i % 2;
      if (row < p.rows && output < p.outputs) residual[i / 2][i % 2] = residual_of(p, row, output);
    }
  }
  // The addresses of the matrices' rows: lane l has chunk l / 8 of row l % 8, and chunk l / 8 + 4
  // for the second half of a group.
  const int row = lane % 8, chunk = lane / 8;
  const unsigned within[2] = {static_cast<unsigned>(row * kRowBytes + (chunk ^ row) * 16),
                              static_cast<unsigned>(row * kRowBytes + ((chunk + 4) ^ row) * 16)};
  const unsigned own = warp * kTileOutputs * kRowBytes;
  const int group_bytes = consumers * kTileOutputs * kRowBytes;
  [[maybe_unused]] unsigned of_rows[kHalves];
  if constexpr (kNormed) {
    // Missing rows repeat the last one; their sums are not used.
    const unsigned first = static_cast<unsigned>(__cvta_generic_to_shared(rows));
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
      of_rows[half] =
          first + min(half * 8 + row, p.rows - 1) * normed_stride(p.inputs) + chunk * 16;
  }
  struct Slice {  // 32 inputs
    unsigned w[kTiles][4], x[2][4];
  };
  constexpr int kSlices = 2 * kGroups;
  const auto load_weights_of = [&](Slice& slice, int i, int stage) {
    const unsigned at = base + stage * stage_bytes + i / 2 * group_bytes + own + within[i % 2];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) load_words(slice.w[tile], at + tile * box_bytes);
  };
  const auto load_x_of = [&](Slice& slice, int i, int stage, int step) {
    const unsigned at = base + stage * stage_bytes + kTiles * box_bytes + within[i % 2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half >= kHalves) {
#pragma unroll
        for (unsigned& word : slice.x[half]) word = 0;
      } else if constexpr (kNormed) {
        load_words(slice.x[half], of_rows[half] + (step * kSlices + i) * 64);
      } else {
        load_words(slice.x[half], at + (i / 2 * kMaxRows + half * 8) * kRowBytes);
      }
    }
  };
  float d[kTiles][4] = {};
  const auto multiply_half = [&](const Slice& slice, int word) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      multiply_in_order<T>(d[tile], slice.x[0][word], slice.x[1][word], slice.x[0][word + 1],
                           slice.x[1][word + 1], slice.w[tile][word], slice.w[tile][word + 1]);
    }
  };
  int stage = 0;
  unsigned parity = 0;
  Slice now[kSlices], next[kSlices];
  full(0).wait(0);
#pragma unroll
  for (int i = 0; i < kSlices; ++i) load_weights_of(now[i], i, 0), load_x_of(now[i], i, 0, 0);
  // While a stage is multiplied, the next one is loaded from shared memory: a warp issues its
  // instructions in order, so these loads are interleaved with the chain, whose instructions each
  // wait for the previous one. After the last stage that one is loaded again.
  const auto advance = [&](const Slice(&current)[kSlices], Slice(&after)[kSlices], int step) {
    const int before = stage;
    const bool more = step + 1 < count;
    if (more && ++stage == stages) stage = 0, parity ^= 1;
    const int next_step = more ? step + 1 : step;
#pragma unroll
    for (int i = 0; i < kSlices; ++i) {
      multiply_half(current[i], 0);
      if (i == 0) full(stage).wait(parity);
      load_weights_of(after[i], i, stage);
      multiply_half(current[i], 2);
      load_x_of(after[i], i, stage, next_step);
    }
    __syncwarp();
    if (lane == 0) empty(before).arrive();
  };
  for (int step = 0; step < count; step += 2) {
    advance(now, next, step);
    if (step + 1 < count) advance(next, now, step + 1);
  }

#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const int to = half * 8 + group;
    if (to >= p.rows) continue;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int output = own_output + i;
      if (output >= p.outputs) continue;
      if constexpr (kGated) {
        store_gated(p, to, output, d[0][2 * half + i], d[1][2 * half + i]);
      } else {
        store_output(p, to, output, d[0][2 * half + i], residual[half][i]);
      }
    }
  }
#endif
}

int tiles_of(std::int64_t outputs) {
  return static_cast<int>((outputs + kTileOutputs - 1) / kTileOutputs);
}

// Consumers per block.
int consumers_for(std::int64_t outputs, int multiprocessors) {
  const int consumers = (tiles_of(outputs) + multiprocessors - 1) / multiprocessors;
  return consumers > kMaxConsumers ? kUsualConsumers : consumers;
}

// Rows in groups of 64 elements.
CUtensorMap describe(const TensorView& rows, int box_rows, int groups) {
  const std::int64_t stride = rows.shape[0] > 1 ? rows.stride[0] : rows.shape[1];
  const std::array<Dimension, 3> dimensions{{{kGroupInputs, 1, kGroupInputs},
                                             {rows.shape[0], stride, box_rows},
                                             {rows.shape[1] / kGroupInputs, kGroupInputs, groups}}};
  return describe_tensor("gemm", rows.dtype, rows.data, dimensions,
                         CU_TENSOR_MAP_L2_PROMOTION_NONE);
}

// The ring of a block with `tiles` tiles. x_rows: rows of x per stage.
struct Ring {
  int stage_bytes, count, stages;  // count: of stages that a GEMM takes

  Ring(int tiles, int groups, int x_rows, std::int64_t inputs)
      : stage_bytes(groups * (tiles * kTileOutputs + x_rows) * kRowBytes),
        count(static_cast<int>((inputs + groups * kGroupInputs - 1) / (groups * kGroupInputs))),
        stages(std::min({count, kMaxStages, std::max(2, kRingBytes / stage_bytes)})) {}
};

template <typename T, bool kGated, int kMaxRows, bool kNormed, int kGroups>
void launch(const GemmCall& call, int consumers, cudaStream_t stream) {
  const GemmParams<T> p(call);
  const int rows = consumers * kTileOutputs;
  const auto [stage_bytes, count, stages] =
      Ring(consumers * (kGated ? 2 : 1), kGroups, kNormed ? 0 : kMaxRows, p.inputs);
  const int bytes = kAlignment + stages * stage_bytes + kMaxStages * 16 +
                    (kNormed ? normed_bytes(p.rows, p.inputs) : 0);
  const auto kernel = invariant_gemv_kernel<T, kGated, kMaxRows, kNormed, kGroups>;
  nvllm::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
      "preparing a GEMV");
  const int warps = kNormed ? std::max(consumers + 1, kMinNormWarps) : consumers + 1;
  const LaunchShape shape{dim3(static_cast<unsigned>((p.outputs + rows - 1) / rows)),
                          dim3(warps * 32), static_cast<std::size_t>(bytes)};
  const TensorView x = x_of(call);
  launch_with_pdl("launching a GEMV", kernel, shape, stream,
                  describe(call.weight.values, rows, kGroups),
                  kNormed ? CUtensorMap{} : describe(x, kMaxRows, kGroups), p, consumers, stages);
}

template <typename T, bool kGated, int kMaxRows, bool kNormed>
void launch(const GemmCall& call, int multiprocessors, cudaStream_t stream) {
  const int consumers = consumers_for(call.operands.out.shape[1], multiprocessors);
  constexpr bool kPlain = !kGated && !kNormed;
  const int groups = groups_for(consumers * (kGated ? 2 : 1), kPlain);
  if constexpr (kPlain) {
    if (groups == 4) return launch<T, kGated, kMaxRows, kNormed, 4>(call, consumers, stream);
  }
  groups == 2 ? launch<T, kGated, kMaxRows, kNormed, 2>(call, consumers, stream)
              : launch<T, kGated, kMaxRows, kNormed, 1>(call, consumers, stream);
}

template <typename T, bool kGated, int kMaxRows>
void launch(const GemmCall& call, int multiprocessors, cudaStream_t stream) {
  is_normed(call) ? launch<T, kGated, kMaxRows, true>(call, multiprocessors, stream)
                  : launch<T, kGated, kMaxRows, false>(call, multiprocessors, stream);
}

template <typename T>
void launch(const GemmCall& call, int multiprocessors, cudaStream_t stream) {
  const bool few = call.operands.out.shape[0] <= 8;
  if (is_gated(call)) {
    few ? launch<T, true, 8>(call, multiprocessors, stream)
        : launch<T, true, 16>(call, multiprocessors, stream);
  } else {
    few ? launch<T, false, 8>(call, multiprocessors, stream)
        : launch<T, false, 16>(call, multiprocessors, stream);
  }
}

}  // namespace

bool loads_early_sm90(const GemmShape& shape, int multiprocessors) {
  if (!fits_gemv(shape) || shape.inputs % kGroupInputs != 0 || !runs_sm90a()) return false;
  const bool gated = shape.fusion.epilogue == Epilogue::gated_activation;
  const std::int64_t outputs = gated ? shape.outputs / 2 : shape.outputs;
  if (tiles_of(outputs) > kMaxConsumers * multiprocessors) return false;
  const int tiles = consumers_for(outputs, multiprocessors) * (gated ? 2 : 1);
  const Ring ring(tiles, groups_for(tiles, !gated), shape.m > 8 ? 16 : 8, shape.inputs);
  return 2 * ring.stages >= ring.count;
}

bool takes_invariant_gemv_sm90(const GemmShape& shape, int multiprocessors) {
  if (!fits_gemv(shape) || shape.inputs % kGroupInputs != 0 || !runs_sm90a()) return false;
  if (shape.fusion.prologue == Prologue::none) return true;
  const bool gated = shape.fusion.epilogue == Epilogue::gated_activation;
  const int tiles = tiles_of(gated ? shape.outputs / 2 : shape.outputs);
  return shape.fusion.prologue == Prologue::rms_norm && tiles <= kMaxConsumers * multiprocessors &&
         shape.m * shape.inputs <= kMaxNormed &&
         (shape.m <= kFewNormedRows || !loads_early_sm90(shape, multiprocessors));
}

void launch_invariant_gemv_sm90(const GemmCall& call, int multiprocessors, cudaStream_t stream) {
  call.weight.format == WeightFormat::bf16 ? launch<Bf16>(call, multiprocessors, stream)
                                           : launch<F16>(call, multiprocessors, stream);
}

}  // namespace nvllm::kernels::cuda
