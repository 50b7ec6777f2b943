// The experts of one row on the GPU, bound by reading their weights.
//
// The first kernel computes gate and up of the row's experts; the second multiplies by `down` and
// adds up. In both, the first warp of each block selects the experts itself, so that the second
// kernel can load weights while the first one is still running: blocks of both fit on a
// multiprocessor together.
//
// A warp computes 16 outputs of an expert, in the first kernel 8 gate rows and their up rows. A
// stage of its ring in shared memory holds a block of 64 bytes of each output's weights, as in
// grouped_quantized.cuh; weights are operand A of the tensor cores, the row is a column of B. Warps
// split an item's inputs: two in the first kernel; in the second, where a block has the same
// outputs of all experts, as many as fit.
#include "device/cuda/stream.h"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/gemm/sm80/grouped_quantized.cuh"
#include "kernels/moe/backends.h"
#include "kernels/moe/moe.h"
#include "kernels/moe/sm80/single_token_moe.cuh"

namespace nvllm::kernels::cuda {
namespace {

using quantized_groups::copy_words;
using single_token::activate, single_token::choose, single_token::Chosen, single_token::combine,
    single_token::kMaxOneRow, single_token::Params, single_token::row_bytes_of,
    single_token::sum_squares, single_token::Weights;

constexpr int kTile = single_token::kTile;
// First kernel: warps of a block, two of which split an item's inputs; blocks per multiprocessor;
// stages of a warp's ring.
constexpr int kWarps = 8, kSplits = 2, kBlocks = 2, kGateUpStages = 4;
constexpr int kDownWarps = 16;              // max. per block of the second kernel
constexpr int kMaxSharedBytes = 120 << 10;  // for that, besides two blocks of the first

// --- formats -------------------------------------------------------------------------------------

// A warp's sums of 16 outputs: lanes that are multiples of 4 hold output lane / 4, and 8 more.
__device__ __forceinline__ void put_sums(float (&to)[kTile], float low, float high) {
  const int lane = threadIdx.x % 32;
  if (lane % 4 == 0) to[lane / 4] = low, to[8 + lane / 4] = high;
}

// A warp's stage: a block of 64 bytes of each of 16 outputs' weights, and their scales.
template <WeightFormat kFormat, typename T>
struct Stage {
  using OfBlock = quantized_groups::Block<kFormat, kFormat == WeightFormat::fp8 ? 128 : 32>;
  static constexpr int kInputs = OfBlock::kInputs, kScaleWords = OfBlock::kScaleWords;
  static constexpr int kScalesAt = kTile * static_cast<int>(kQuantizedBlockBytes);
  static constexpr int kBytes = kScalesAt + kTile * kScaleWords * 4;

  static __device__ __forceinline__ int first_scale(int stage) {
    return OfBlock::first_word(stage);
  }
  static __device__ __forceinline__ void arrange(unsigned (&step)[2]) {
    arrange_step<kFormat, T>(step);
  }

  // In registers: a stage's weights and x, from shared memory.
  struct Operands {
    quantized_groups::Loaded<OfBlock> weights;
    RowsFragments<kFormat, T, 1> row;
    __device__ __forceinline__ Operands(const char* stage, unsigned x)
        : weights(stage, kScalesAt, 0) {
      row.load(x, 0, 1);
    }
  };
  struct Sums {
    PassSums<T, kFormat, OfBlock::kUnit, 1> sums;
    __device__ __forceinline__ void add(const Operands& stage) {
      sums.add(stage.weights, stage.row);
    }
    __device__ __forceinline__ void put(float (&to)[kTile]) const {
      put_sums(to, sums.d[0][0] * kSumUnit<kFormat, T>, sums.d[0][2] * kSumUnit<kFormat, T>);
    }
  };
};

// Weights of the type of x.
template <typename T>
struct FloatStage {
  static constexpr int kInputs = kSliceInputs, kScaleWords = 0;
  static constexpr int kScalesAt = kTile * static_cast<int>(kQuantizedBlockBytes);
  static constexpr int kBytes = kScalesAt;
  static __device__ __forceinline__ int first_scale(int) { return 0; }
  static __device__ __forceinline__ void arrange(unsigned (&)[2]) {}

  struct Operands {
    Vector<T> a, a8;
    unsigned b[4] = {};
    __device__ __forceinline__ Operands(const char* stage, unsigned x) {
      const int lane = threadIdx.x % 32;
      const auto* const weights = reinterpret_cast<const Vector<T>*>(stage);
      a = weights[lane], a8 = weights[32 + lane];
      if (lane >= 4) return;
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                   : "r"(x + lane * 16)
                   : "memory");
    }
  };
  struct Sums {
    float d[4] = {};
    __device__ __forceinline__ void add(const Operands& s) {
      multiply_add<T>(d, s.a.word[0], s.a8.word[0], s.a.word[1], s.a8.word[1], s.b[0], s.b[1]);
      multiply_add<T>(d, s.a.word[2], s.a8.word[2], s.a.word[3], s.a8.word[3], s.b[2], s.b[3]);
    }
    __device__ __forceinline__ void put(float (&to)[kTile]) const { put_sums(to, d[0], d[2]); }
  };
};
template <>
struct Stage<WeightFormat::bf16, Bf16> : FloatStage<Bf16> {};
template <>
struct Stage<WeightFormat::f16, F16> : FloatStage<F16> {};

// --- operands ------------------------------------------------------------------------------------

// Up to 8 rows of a weight, from the first on.
struct Rows {
  long long first;
  int count;
};

// Two sets of 8 outputs of an expert, as a warp copies them.
template <typename OfStage>
class Tile {
 public:
  template <typename T>
  __device__ __forceinline__ Tile(const Weights<T>& weights, const Rows& low, const Rows& high)
      : values_base_(weights.values), scales_base_(weights.scales), row_bytes_(weights.row_bytes) {
    const int lane = threadIdx.x % 32, output = lane / 4;
    values_[0] = (low.first + output) * weights.row_bytes + lane % 4 * 16;
    values_[1] = (high.first + output) * weights.row_bytes + lane % 4 * 16;
    there_[0] = output < low.count, there_[1] = output < high.count;
    const Rows& scaled = lane < 8 ? low : high;
    scales_ = (scaled.first + lane % 8) * weights.row_scales;
    has_scales_ = lane % 8 < scaled.count;
  }

  __device__ __forceinline__ int stages() const { return (row_bytes_ + 63) / 64; }

  __device__ __forceinline__ void copy(int stage, unsigned to) const {
    const int lane = threadIdx.x % 32;
    const bool inside = stage * 64 + lane % 4 * 16 < row_bytes_;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool there = inside && there_[half];
      few_rows::copy_weights(to + half * 512 + lane * 16,
                             there ? values_base_ + values_[half] + stage * 64 : values_base_,
                             there);
    }
    if constexpr (OfStage::kScaleWords > 0) {
      if (lane < kTile) {
        constexpr int kWords = OfStage::kScaleWords;
        copy_words<kWords>(
            to + OfStage::kScalesAt + lane * kWords * 4,
            has_scales_ ? scales_base_ + scales_ + OfStage::first_scale(stage) : scales_base_,
            has_scales_);
      }
    }
  }

 private:
  const char* values_base_;
  const unsigned* scales_base_;
  int row_bytes_;
  long long values_[2], scales_;
  bool there_[2], has_scales_;
};

// Multiplies a tile: its stages first, first + step, ..., of which the ring holds kStages at a
// time, and the first ones already. Stages are processed in pairs, since a single one is a chain of
// dependent loads and multiplications. ring: of the warp. row: of x.
template <typename Here, int kStages>
__device__ __forceinline__ typename Here::Sums multiply_tile(const Tile<Here>& tile, int first,
                                                             int step, const char* ring,
                                                             unsigned row) {
  static_assert(kStages % 2 == 0);
  const int count = (tile.stages() - first + step - 1) / step;
  const unsigned to = address_of(ring);
  typename Here::Sums sums;
  int slot = 0;
#pragma unroll 1
  for (int i = 0; i < count; i += 2) {
    wait_for_copies<kStages - 2>();
    __syncwarp();
    const char* const from = ring + slot * Here::kBytes;
    const unsigned x = row + (first + i * step) * Here::kInputs * 2;
    const bool both = i + 1 < count;
    const typename Here::Operands one(from, x);
    // Without a second stage the first is repeated; its sums are not used.
    const typename Here::Operands two(from + (both ? Here::kBytes : 0),
                                      x + (both ? step * Here::kInputs * 2 : 0));
    sums.add(one);
    if (both) sums.add(two);
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int next = i + k + kStages;
      if (next < count) tile.copy(first + next * step, to + (slot + k) * Here::kBytes);
      commit_copies();
    }
    slot = slot + 2 == kStages ? 0 : slot + 2;
  }
  return sums;
}

// Writes a row to shared memory in stage layout, with `threads` threads. Rows are whole vectors.
template <typename OfStage, typename T, typename Of>
__device__ __forceinline__ void put_row(Vector<T>* row, int inputs, int thread, int threads,
                                        const Of& vector_of) {
  const int vectors = inputs / 8, pairs = row_bytes_of(inputs) / 32;
  for (int i = thread; i < pairs; i += threads) {
    Vector<T> x[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int vector = i * 2 + half;
      x[half] = vector < vectors ? vector_of(vector) : Vector<T>{};
    }
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      unsigned step[2] = {x[0].word[word], x[1].word[word]};
      OfStage::arrange(step);
      x[0].word[word] = step[0], x[1].word[word] = step[1];
    }
    row[i * 2] = x[0], row[i * 2 + 1] = x[1];
  }
}

// --- the kernels ---------------------------------------------------------------------------------

constexpr int gate_up_shared(int stage_bytes, int columns) {
  return kWarps * kGateUpStages * stage_bytes + row_bytes_of(columns) + norm_slots(columns) * 4;
}

// Starts the copies of a tile, up to the size of the warp's ring.
template <int kStages, typename Here>
__device__ __forceinline__ void start_tile(const Tile<Here>& tile, int first, int step,
                                           const char* ring) {
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) {
    const int stage = first + i * step;
    if (stage < tile.stages()) tile.copy(stage, address_of(ring) + i * Here::kBytes);
    commit_copies();
  }
}

template <typename T, WeightFormat kFormat>
__global__ void __launch_bounds__(kWarps * 32, kBlocks) gate_up_kernel(const Params<T> p) {
  using Here = Stage<kFormat, T>;
  constexpr int kRing = kGateUpStages * Here::kBytes, kGroups = kWarps / kSplits;
  extern __shared__ __align__(128) char shared[];
  __shared__ Chosen chosen;
  __shared__ float sums[2][kGroups][kSplits][kTile];  // double-buffered by item
  const int warp = threadIdx.x / 32, group = warp / kSplits, split = warp % kSplits;
  const char* const ring = shared + warp * kRing;
  auto* const row = reinterpret_cast<Vector<T>*>(shared + kWarps * kRing);
  auto* const squares = reinterpret_cast<float*>(shared + kWarps * kRing + row_bytes_of(p.columns));

  pdl_begin();
  if (warp == 0) {
    choose(p, chosen);
  } else if (p.norm_weight != nullptr) {
    sum_squares(p, squares, warp - 1, kWarps - 1);
  }
  __syncthreads();
  const int tiles = (p.inner + 7) / 8, items = p.k * tiles;
  const int workers = static_cast<int>(gridDim.x) * kGroups;
  const auto tile_of = [&](int item) {
    const int column = item % tiles * 8, count = p.inner - column;
    const long long first =
        static_cast<long long>(chosen.experts[item / tiles]) * 2 * p.inner + column;
    return Tile<Here>(p.gate_up, {first, count}, {first + p.inner, count});
  };
  int item = group * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  // Weights first: the row is arranged while they are in flight.
  if (item < items) start_tile<kGateUpStages>(tile_of(item), split, kSplits, ring);
  float scale = 1;
  if (p.norm_weight != nullptr) {
    scale = rms_norm_scale(rms_norm_add_chunks(squares, norm_slots(p.columns)),
                           1.0f / static_cast<float>(p.columns), p.epsilon);
  }
  put_row<Here>(row, p.columns, threadIdx.x, kWarps * 32, [&](int vector) {
    const Vector<T> x = load_vector(p.x + vector * 8);
    return p.norm_weight == nullptr
               ? x
               : rms_norm_apply(x, scale, load_vector(p.norm_weight + vector * 8));
  });
  __syncthreads();

  for (int n = 0; item < items; item += workers, ++n) {
    const Tile<Here> tile = tile_of(item);
    if (n > 0) start_tile<kGateUpStages>(tile, split, kSplits, ring);
    const auto d = multiply_tile<Here, kGateUpStages>(tile, split, kSplits, ring, address_of(row));
    float(&of_item)[kSplits][kTile] = sums[n % 2][group];
    d.put(of_item[split]);
    wait_for_group<kSplits * 32>(group);
    const int lane = threadIdx.x % 32, of_row = item / tiles, column = item % tiles * 8 + lane;
    if (split > 0 || lane >= 8 || column >= p.inner) continue;
    const long long output = static_cast<long long>(chosen.experts[of_row]) * 2 * p.inner + column;
    float gate = p.gate_up.bias_of(output), up = p.gate_up.bias_of(output + p.inner);
#pragma unroll
    for (int i = 0; i < kSplits; ++i) gate += of_item[i][lane], up += of_item[i][8 + lane];
    p.activated[of_row * p.inner + column] = activate(p, gate, up);
  }
}

// Warps of the second kernel that split an expert's inputs.
__host__ __device__ constexpr int splits_of(int k) {
  return kDownWarps / k;
}
// Shared memory of the second kernel: rows of `activated`, then the warps' rings.
constexpr int down_shared(int stage_bytes, int stages, int k, int inner) {
  return k * (row_bytes_of(inner) + splits_of(k) * stages * stage_bytes);
}

// grid: tiles of 16 columns.
template <typename T, WeightFormat kFormat, int kStages>
__global__ void __launch_bounds__(kDownWarps * 32, 1) down_kernel(const Params<T> p) {
  using Here = Stage<kFormat, T>;
  extern __shared__ __align__(128) char shared[];
  __shared__ Chosen chosen;
  __shared__ float sums[kDownWarps][kTile];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int splits = splits_of(p.k), of_row = warp / splits, split = warp % splits;
  const int row_bytes = row_bytes_of(p.inner), first = static_cast<int>(blockIdx.x) * kTile;
  char* const row = shared + of_row * row_bytes;
  char* const ring = shared + p.k * row_bytes + warp * kStages * Here::kBytes;

  // The logits were written before the previous kernel began.
  if (warp == 0) choose(p, chosen);
  __syncthreads();
  const long long first_row = static_cast<long long>(chosen.experts[of_row]) * p.columns + first;
  const Tile<Here> tile(p.down, {first_row, p.columns - first},
                        {first_row + 8, p.columns - first - 8});
  start_tile<kStages>(tile, split, splits, ring);
  pdl_begin();
  put_row<Here>(
      reinterpret_cast<Vector<T>*>(row), p.inner, split * 32 + lane, splits * 32,
      [&](int vector) { return load_vector(p.activated + of_row * p.inner + vector * 8); });
  __syncthreads();
  multiply_tile<Here, kStages>(tile, split, splits, ring, address_of(row)).put(sums[warp]);
  __syncthreads();
  if (warp == 0) combine(p, chosen, sums, splits, first);
}

// --- launching -----------------------------------------------------------------------------------

constexpr int kManyStages = 6, kSomeStages = 4, kFewStages = 2;

// Stages of the second kernel: as many as fit in addition to the first.
template <int kStageBytes>
int down_stages(const SingleTokenMoe& args) {
  const int k = static_cast<int>(args.k), inner = static_cast<int>(args.down.inputs());
  for (const int stages : {kManyStages, kSomeStages}) {
    if (down_shared(kStageBytes, stages, k, inner) <= kMaxSharedBytes) return stages;
  }
  return kFewStages;
}

// Sets the maximum shared memory carveout, so that blocks of both kernels fit on a multiprocessor
// together.
template <typename... Args>
void launch_with_memory(const char* what, void (*kernel)(Args...), unsigned blocks, int threads,
                        int shared, cudaStream_t stream, const Args&... args) {
  nvllm::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), what);
  nvllm::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                          cudaSharedmemCarveoutMaxShared),
                     what);
  launch_with_pdl(what, kernel,
                  LaunchShape{dim3(blocks), dim3(static_cast<unsigned>(threads)),
                              static_cast<std::size_t>(shared)},
                  stream, args...);
}

template <typename T, WeightFormat kFormat>
void launch(const SingleTokenMoe& args, cudaStream_t stream) {
  using Here = Stage<kFormat, T>;
  const Params<T> p(args);
  const int multiprocessors = nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount);
  launch_with_memory("launching single_token_moe", gate_up_kernel<T, kFormat>,
                     static_cast<unsigned>(multiprocessors * kBlocks), kWarps * 32,
                     gate_up_shared(Here::kBytes, p.columns), stream, p);
  const int stages = down_stages<Here::kBytes>(args);
  const auto kernel = stages == kManyStages   ? down_kernel<T, kFormat, kManyStages>
                      : stages == kSomeStages ? down_kernel<T, kFormat, kSomeStages>
                                              : down_kernel<T, kFormat, kFewStages>;
  launch_with_memory("launching single_token_moe", kernel, blocks_for(p.columns, kTile),
                     p.k * splits_of(p.k) * 32, down_shared(Here::kBytes, stages, p.k, p.inner),
                     stream, p);
}

template <typename T, WeightFormat kFloats>
void launch_format(const SingleTokenMoe& args, cudaStream_t stream) {
  switch (args.gate_up.format) {
    case WeightFormat::fp8: return launch<T, WeightFormat::fp8>(args, stream);
    case WeightFormat::mxfp4: return launch<T, WeightFormat::mxfp4>(args, stream);
    default: return launch<T, kFloats>(args, stream);
  }
}

bool takes_format(const GemmWeight& weight) {
  const bool floats = weight.format == WeightFormat::bf16 || weight.format == WeightFormat::f16;
  return (floats || has_float_values(weight.format)) && weight.values.aligned(16) &&
         weight.inputs() % 8 == 0;
}

}  // namespace

bool takes_single_token(const SingleTokenMoe& args) {
  const bool activates =
      args.activation == Activation::silu || args.activation == Activation::clamped_swiglu;
  if (!activates || args.out.dtype == DType::f32 || args.k > kMaxOneRow) return false;
  if (args.down.inputs() == 0) return false;  // a rank without a slice of the experts
  if (args.gate_up.format != args.down.format || !takes_format(args.gate_up) ||
      !takes_format(args.down)) {
    return false;
  }
  const int k = static_cast<int>(args.k);
  constexpr int kStageBytes = Stage<WeightFormat::fp8, Bf16>::kBytes;  // no format has larger ones
  const int max_shared = nvllm::cuda::device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return down_shared(kStageBytes, kFewStages, k, static_cast<int>(args.down.inputs())) <=
             max_shared &&
         gate_up_shared(kStageBytes, static_cast<int>(args.out.shape[1])) <= max_shared &&
         args.x.aligned(16) && args.norm_weight.aligned(16) && args.activated.aligned(16);
}

void single_token_moe(const SingleTokenMoe& args, Stream& stream) {
  if (single_token_moe_sm90(args, stream)) return;
  const cudaStream_t native = nvllm::cuda::native(stream);
  args.out.dtype == DType::bf16 ? launch_format<Bf16, WeightFormat::bf16>(args, native)
                                : launch_format<F16, WeightFormat::f16>(args, native);
}

}  // namespace nvllm::kernels::cuda
