// GEMV with a quantized weight on Hopper, for large weights. It computes the same as
// sm80/quantized_gemv.cuh, of which it uses parts; but bulk copies load the weights into rings in
// shared memory. Since no weights wait in registers, the rings can be filled before the kernel
// waits for the previous one in the stream and while rows of x are normed, and warps multiply
// several slices at a time.
//
// As there, a group of kSplits warps computes up to 16 outputs in a pass. A stage of its ring has a
// chunk of the inputs of these outputs, of which a warp takes every kSplits-th slice; an extra warp
// fills it. The row stride of a stage puts adjacent rows into different banks.
#include <algorithm>

#include "device/cuda/stream.h"
#include "kernels/common/cuda_arch.h"
#include "kernels/common/sm90/tma.cuh"
#include "kernels/gemm/sm80/gemv_plan.cuh"
#include "kernels/gemm/sm80/quantized_gemv.cuh"
#include "kernels/gemm/sm90/entry_points.h"

namespace nvllm::kernels::cuda {
namespace bulk_gemv {

// Launch parameters. Offsets are into shared memory, where x comes first.
struct Grid {
  int share;   // outputs per block; gate rows, if the GEMM is gated
  int pass;    // outputs per pass: at most 16, or 8 gate rows
  int stages;  // of a group's ring
  int scales, barriers, rings;
};

// kSlices: per warp.
template <int kSplits, int kSlices>
struct Stage {
  static constexpr int kChunkBytes = kSplits * kSlices * kGemvSliceBytes;  // of an output
  static constexpr int kPitch = kChunkBytes + kGemvSliceBytes;
  static constexpr int kBytes = kPassOutputs * kPitch;
  static_assert(kChunkBytes % 128 == 0, "neighbours lie in different banks");
};

// Words of scales per output in shared memory: odd, so that adjacent outputs lie in different
// banks.
__host__ __device__ constexpr int scale_pitch(int groups) {
  return groups | 1;
}

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ void load_shared_words(unsigned (&words)[4], unsigned address) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ unsigned load_shared_word(unsigned address) {
  unsigned word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}

// A group's ring: barriers that signal that a stage is full or empty.
struct Ring {
  unsigned memory, barriers;
  int stages;
  int stage = 0;
  unsigned parity = 0;

  __device__ __forceinline__ Barrier full() const { return Barrier{barriers + stage * 8}; }
  __device__ __forceinline__ Barrier empty() const {
    return Barrier{barriers + (stages + stage) * 8};
  }
  __device__ __forceinline__ void advance() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

// Called by one warp: copies the chunks of a group's passes in order.
template <bool kGated, int kGroups, typename OfStage>
struct Producer {
  const QuantizedOperand& q;
  const Grid& grid;
  int group, first_output, outputs, all_outputs;
  int pass = 0, at = 0;  // the next chunk's pass, and its offset in rows

  __device__ __forceinline__ int first() const { return (pass * kGroups + group) * grid.pass; }
  __device__ __forceinline__ bool done() const { return first() >= outputs; }

  __device__ __forceinline__ void copy(const Ring& ring) {
    const int lane = threadIdx.x % 32;
    const int bytes = min(OfStage::kChunkBytes, q.row_bytes - at);
    const int count = min(grid.pass, outputs - first());
    if (lane == 0) ring.full().arrive_and_expect((kGated ? 2 : 1) * count * bytes);
    __syncwarp();
    const int number = kGated ? lane % kTileOutputs : lane;
    if (lane < kPassOutputs && number < count) {
      const long long row =
          first_output + first() + number + (kGated && lane >= kTileOutputs ? all_outputs : 0);
      copy_bytes(ring.memory + ring.stage * OfStage::kBytes + lane * OfStage::kPitch,
                 q.values + row * q.row_bytes + at, bytes, ring.full());
    }
    at += OfStage::kChunkBytes;
    if (at >= q.row_bytes) at = 0, ++pass;
  }
};

// Copies the scales of the block's outputs asynchronously; with kGated up rows follow gate rows.
template <bool kGated>
__device__ __forceinline__ void copy_scales(const QuantizedOperand& q, unsigned to,
                                            int first_output, int outputs, int all_outputs) {
  const int pitch = scale_pitch(q.row_groups) * 4;
  for (int row = threadIdx.x / 32; row < (kGated ? 2 : 1) * outputs; row += blockDim.x / 32) {
    const long long output =
        row < outputs ? first_output + row : first_output + row - outputs + all_outputs;
    for (int group = threadIdx.x % 32; group < q.row_groups; group += 32) {
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to + row * pitch + group * 4),
                   "l"(q.scales + output * q.row_groups + group)
                   : "memory");
    }
  }
}

#endif

// p.inputs are whole slices. The parameters are those of quantized_gemv_kernel.
template <typename T, WeightFormat kFormat, int kUnit, bool kNormed, bool kGated, int kMaxRows,
          int kSplits, int kSlices, int kWarps>
__global__ void __launch_bounds__((kWarps + kWarps / kSplits) * 32, 1)
    bulk_gemv_kernel(const GemmParams<T> p, const QuantizedOperand q, const Grid grid) {
#if __CUDA_ARCH__ >= 900
  using OfStage = Stage<kSplits, kSlices>;
  using Weights = PassWeights<kFormat, kUnit, kGated, kSplits>;
  constexpr int kGroups = kWarps / kSplits, kHalves = kMaxRows / 8;
  constexpr int kInputs = kBlockInputs<kFormat>;
  constexpr bool kFactors = takes_factors(kNormed, kGated) && kHasFactors<T, kFormat, kUnit>;
  __shared__ float sums[2][kWarps][kHalves * 8][kSumStride];
  extern __shared__ __align__(128) char shared[];
  const unsigned base = address_of(shared);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool produces = warp >= kWarps;
  const int group = produces ? warp - kWarps : warp / kSplits;
  const int first_output = blockIdx.x * grid.share;
  const int outputs = min(grid.share, p.outputs - first_output);
  Ring ring{base + grid.rings + group * grid.stages * OfStage::kBytes,
            base + grid.barriers + group * grid.stages * 16, grid.stages};
  Producer<kGated, kGroups, OfStage> producer{q, grid, group, first_output, outputs, p.outputs};

  // Constants are loaded before the previous kernel has ended.
  if (produces) {
    if (lane == 0) {
      for (int stage = 0; stage < grid.stages; ++stage) {
        Barrier{ring.barriers + stage * 8}.init(1);
        Barrier{ring.barriers + (grid.stages + stage) * 8}.init(kSplits);
      }
      fence_barrier_init();
    }
    __syncwarp();
    for (int i = 0; i < grid.stages && !producer.done(); ++i) {
      producer.copy(ring);
      ring.advance();
    }
  }
  copy_scales<kGated>(q, base + grid.scales, first_output, outputs, p.outputs);
  const StagedRows<T, kFormat, kNormed, kFactors, kMaxRows> staged(shared, p);
  staged.begin(p);
  pdl_begin();
  wait_for_async_copies();
  staged.finish(p);

  if (produces) {
    // The ring has been filled once; its stages become empty in the same order.
    unsigned parity = 0;
    if (ring.stage != 0) return;  // it has room for all
    while (!producer.done()) {
      ring.empty().wait(parity);
      producer.copy(ring);
      ring.advance();
      if (ring.stage == 0) parity ^= 1;
    }
    return;
  }

  const int split = warp % kSplits, slices = p.inputs / kInputs;
  const int group_bits = kUnit == 128 || kFormat == WeightFormat::fp8 ? 7 : q.group_bits;
  const unsigned own = lane / 4 * OfStage::kPitch + split * kGemvSliceBytes + lane % 4 * 16;
  const int pitch = scale_pitch(q.row_groups) * 4;
  PassEnd<T, kGated, kSplits> end{first_output};
  const auto pass_at = [&](int n) {
    const int first = (n * kGroups + group) * grid.pass;
    return Pass{first, min(grid.pass, outputs - first)};
  };
  Pass pass = pass_at(0);
  end.begin(p, pass);
#pragma unroll 1
  for (int n = 0; pass.outputs > 0; ++n) {
    const unsigned scales = base + grid.scales + (pass.first + lane / 4) * pitch;
    const int apart = (kGated ? outputs : kTileOutputs) * pitch;
    PassSums<T, kFormat, kUnit, kHalves, kFactors> d;
#pragma unroll 1
    for (int chunk = 0; chunk < slices; chunk += kSplits * kSlices) {
      typename Weights::Loaded w[kSlices];
      ring.full().wait(ring.parity);
      const unsigned at = ring.memory + ring.stage * OfStage::kBytes + own;
#pragma unroll
      for (int i = 0; i < kSlices; ++i) {
        const int slice = chunk + i * kSplits + split;
        if (slice >= slices) break;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          load_shared_words(w[i].words[half], at + i * kSplits * kGemvSliceBytes +
                                                  half * kTileOutputs * OfStage::kPitch);
#pragma unroll
          for (int unit = 0; unit < Weights::kUnits; ++unit) {
            const int of_group = (slice * kInputs + unit * kUnit) >> group_bits;
            w[i].scales[half][unit] = load_shared_word(scales + half * apart + of_group * 4);
          }
        }
      }
      __syncwarp();
      if (lane == 0) ring.empty().arrive();
      ring.advance();
#pragma unroll
      for (int i = 0; i < kSlices; ++i) {
        const int slice = chunk + i * kSplits + split;
        if (slice >= slices) break;
        RowsFragments<kFormat, T, kHalves> x;
        x.load(staged.slice(slice), staged.row_bytes, p.rows);
        float2 of_rows[kHalves] = {};
        if constexpr (kFactors) {
#pragma unroll
          for (int half = 0; half < kHalves; ++half) of_rows[half] = staged.factors_of(slice, half);
        }
        d.add(w[i], x, of_rows);
      }
    }
    d.put(sums[n % 2][warp], p.rows);
    wait_for_group<kSplits * 32>(group);
    end.store(p, pass, &sums[n % 2][group * kSplits]);
    pass = pass_at(n + 1);
    end.begin(p, pass);
  }
#endif
}

}  // namespace bulk_gemv

namespace {

// 16 warps in groups of four were the fastest, with the largest stages of which two fit.
constexpr int kSplits = 4, kWarps = 16, kGroups = kWarps / kSplits;
constexpr int kSlices = 4, kFewerSlices = 3, kMinStages = 2;
constexpr int kMaxRows = 8;
constexpr int kSharedBytes = 227 << 10;  // available to a block
// Smaller weights arrive before the rows of x do.
constexpr std::int64_t kMinWeights = 24 << 20;
// Chunks of the inputs must be this full on average.
constexpr double kMinFull = 0.8;

constexpr int rounded(int bytes, int to) {
  return (bytes + to - 1) / to * to;
}

struct Plan {
  bulk_gemv::Grid grid{};
  int shared_bytes = 0;

  bool exists() const { return grid.stages >= kMinStages; }
};

template <int kOfWarp>
int chunks_of(const QuantizedShape& weight) {
  return ceil_div(static_cast<int>(weight.row_bytes()),
                  bulk_gemv::Stage<kSplits, kOfWarp>::kChunkBytes);
}

bool suits(const GemmCall& call) {
  const QuantizedShape weight = call.weight.quantized_shape();
  const bool fp8 = weight.format == WeightFormat::fp8;
  if (!fp8 && weight.format != WeightFormat::int4) return false;
  if (!is_gated(call) && !(is_normed(call) && fp8)) return false;
  if (call.weight.type() != DType::bf16 || call.operands.out.shape[0] > kMaxRows) return false;
  if (weight.group < 128 || weight.inputs % weight.block_inputs() != 0) return false;
  const double chunks = chunks_of<kSlices>(weight);
  const double bytes = chunks * bulk_gemv::Stage<kSplits, kSlices>::kChunkBytes;
  return weight.outputs * weight.inputs >= kMinWeights &&
         static_cast<double>(weight.row_bytes()) >= kMinFull * bytes;
}

template <int kOfWarp>
Plan plan_of(const GemmCall& call, int multiprocessors) {
  using OfStage = bulk_gemv::Stage<kSplits, kOfWarp>;
  const QuantizedShape weight = call.weight.quantized_shape();
  const int rows = static_cast<int>(call.operands.out.shape[0]), width = is_gated(call) ? 2 : 1;
  Plan plan;
  bulk_gemv::Grid& grid = plan.grid;
  grid.share = ceil_div(static_cast<int>(weight.outputs) / width, multiprocessors);
  const int passes = ceil_div(ceil_div(grid.share, kPassOutputs / width), kGroups);
  grid.pass = ceil_div(grid.share, passes * kGroups);
  const int x_bytes = staged_bytes(rows, static_cast<int>(weight.inputs), is_normed(call), true);
  grid.scales = rounded(x_bytes, 128);
  const int pitch = bulk_gemv::scale_pitch(static_cast<int>(weight.groups()));
  grid.barriers = rounded(grid.scales + width * grid.share * pitch * 4, 16);
  const int room = kSharedBytes - 2 * kWarps * kMaxRows * kSumStride * 4 - grid.barriers - 128;
  grid.stages =
      std::min(room / (kGroups * (OfStage::kBytes + 16)), passes * chunks_of<kOfWarp>(weight));
  grid.rings = rounded(grid.barriers + kGroups * grid.stages * 16, 128);
  plan.shared_bytes = grid.rings + kGroups * grid.stages * OfStage::kBytes;
  return plan;
}

template <WeightFormat kFormat, int kUnit, bool kNormed, bool kGated, int kOfWarp>
void launch(const GemmCall& call, const Plan& plan, cudaStream_t stream) {
  const auto kernel = bulk_gemv::bulk_gemv_kernel<Bf16, kFormat, kUnit, kNormed, kGated, kMaxRows,
                                                  kSplits, kOfWarp, kWarps>;
  nvllm::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_bytes),
      "preparing a GEMV");
  const GemmParams<Bf16> p(call);
  const LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(p.outputs, plan.grid.share))),
                          dim3((kWarps + kGroups) * 32),
                          static_cast<std::size_t>(plan.shared_bytes)};
  launch_with_pdl("launching a GEMV", kernel, shape, stream, p, QuantizedOperand(call.weight),
                  plan.grid);
}

template <int kOfWarp>
void launch(const GemmCall& call, const Plan& plan, cudaStream_t stream) {
  const bool normed = is_normed(call);
  if (call.weight.format == WeightFormat::int4) {
    return normed ? launch<WeightFormat::int4, 128, true, true, kOfWarp>(call, plan, stream)
                  : launch<WeightFormat::int4, 128, false, true, kOfWarp>(call, plan, stream);
  }
  if (!is_gated(call)) {
    return launch<WeightFormat::fp8, 64, true, false, kOfWarp>(call, plan, stream);
  }
  normed ? launch<WeightFormat::fp8, 64, true, true, kOfWarp>(call, plan, stream)
         : launch<WeightFormat::fp8, 64, false, true, kOfWarp>(call, plan, stream);
}

}  // namespace

bool enqueue_bulk_gemv(const GemmCall& call, int multiprocessors, cudaStream_t stream) {
  if (!suits(call) || !runs_sm90a()) return false;
  const Plan plan = plan_of<kSlices>(call, multiprocessors);
  if (plan.exists()) {
    launch<kSlices>(call, plan, stream);
    return true;
  }
  const Plan second = plan_of<kFewerSlices>(call, multiprocessors);
  if (second.exists()) launch<kFewerSlices>(call, second, stream);
  return second.exists();
}

}  // namespace nvllm::kernels::cuda
