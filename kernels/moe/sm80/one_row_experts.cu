// The experts of one row on the GPU, bound by the reading of their weights.
//
// The first kernel chooses the experts, each warp for itself, and makes gates and ups of them; the
// second multiplies by `down` and adds up. It chooses the experts, too, and its weights are on
// their way while the first kernel is still at work: both have room on a multiprocessor together.
//
// A warp takes 16 outputs of an expert, in the first kernel 8 gates and what they let through. Of
// each it reads blocks of 64 bytes, one of each output in a stage of its ring in shared memory, as
// grouped_quantized.cuh has it; weights are operand A of the tensor cores, the row is a column of
// B. In the second kernel a block has the same outputs of all experts, and warps that share an
// expert's inputs where there are few experts.
#include "device/cuda/stream.h"
#include "kernels/common/sm80/launch.cuh"
#include "kernels/gemm/sm80/grouped_quantized.cuh"
#include "kernels/moe/backends.h"
#include "kernels/moe/one_row_experts.h"
#include "kernels/moe/route.h"
#include "kernels/moe/sm80/choose.cuh"
#include "kernels/pointwise/sm80/rmsnorm.cuh"

namespace nvllm::kernels::cuda {
namespace {

using quantized_groups::copy_words;

constexpr int kTile = 16;       // outputs of a warp at a time
constexpr int kMaxOneRow = 16;  // experts of a row
constexpr int kWarps = 4,
              kBlocks = 2;         // of the first kernel: of a block; blocks of a multiprocessor
constexpr int kGateUpStages = 10;  // of a warp's ring
constexpr int kDownWarps = 8;      // at least so many in a block
constexpr int kMaxSharedBytes = 120 << 10;  // of the second kernel, beside two blocks of the first

// --- formats -------------------------------------------------------------------------------------

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

  // Sums of 16 outputs: those of lane l / 4, and of 8 more, in lanes that are multiples of 4.
  struct Sums {
    PassSums<T, kFormat, OfBlock::kUnit, 1> sums;
    __device__ __forceinline__ void add(const char* stage, unsigned x) {
      RowsFragments<kFormat, T, 1> row;
      row.load(x, 0, 1);
      sums.add(quantized_groups::Loaded<OfBlock>(stage, kScalesAt, 0), row);
    }
    __device__ __forceinline__ float get(int half) const {
      return sums.d[0][half * 2] * kSumUnit<kFormat, T>;
    }
  };
};

// Of weights of the type of x.
template <typename T>
struct FloatStage {
  static constexpr int kInputs = kSliceInputs, kScaleWords = 0;
  static constexpr int kScalesAt = kTile * 64, kBytes = kScalesAt;
  static __device__ __forceinline__ int first_scale(int) { return 0; }
  static __device__ __forceinline__ void arrange(unsigned (&)[2]) {}

  struct Sums {
    float d[4] = {};
    __device__ __forceinline__ void add(const char* stage, unsigned x) {
      const int lane = threadIdx.x % 32;
      const auto* const weights = reinterpret_cast<const Vector<T>*>(stage);
      const Vector<T> a = weights[lane], a8 = weights[32 + lane];
      unsigned b[4] = {};
      if (lane < 4) load_row(b, x + lane * 16);
      multiply(T{}, d, a.word[0], a8.word[0], a.word[1], a8.word[1], b[0], b[1]);
      multiply(T{}, d, a.word[2], a8.word[2], a.word[3], a8.word[3], b[2], b[3]);
    }
    __device__ __forceinline__ float get(int half) const { return d[half * 2]; }

   private:
    static __device__ __forceinline__ void load_row(unsigned (&b)[4], unsigned from) {
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                   : "r"(from)
                   : "memory");
    }
  };
};
template <>
struct Stage<WeightFormat::bf16, Bf16> : FloatStage<Bf16> {};
template <>
struct Stage<WeightFormat::f16, F16> : FloatStage<F16> {};

// --- operands ------------------------------------------------------------------------------------

template <typename T>
struct Weights {
  const char* values;
  const unsigned* scales;
  const T* bias;  // nullptr: none
  int row_bytes, row_scales;

  explicit Weights(const GemmWeight& weight)
      : values(weight.values.as<const char>()),
        scales(weight.quantized.scales.as<const unsigned>()),
        bias(weight.bias.as<const T>()),
        row_bytes(static_cast<int>(weight.inputs() * 2)),
        row_scales(0) {
    if (!is_quantized(weight.format)) return;
    const QuantizedShape shape = weight.quantized_shape();
    row_bytes = static_cast<int>(shape.row_bytes());
    row_scales = static_cast<int>(shape.scale_columns() *
                                  static_cast<std::int64_t>(size_of(shape.scale_type())) / 4);
  }
  __device__ __forceinline__ float bias_of(long long output) const {
    return bias == nullptr ? 0.0f : widen(bias[output]);
  }
};

template <typename T>
struct Params {
  T* out;
  const T* x;
  const T* norm_weight;  // nullptr: x is normed
  const float* logits;
  T* activated;
  const T *residual, *shared;  // nullptr: none
  const float* shared_gate;
  Weights<T> gate_up, down;
  int columns, inner, experts, k;
  bool renormalize, clamps;  // Activation::clamped_swiglu
  float epsilon, limit;

  explicit Params(const OneRowExperts& args)
      : out(args.out.as<T>()),
        x(args.x.as<const T>()),
        norm_weight(args.norm_weight.as<const T>()),
        logits(args.logits.as<const float>()),
        activated(args.activated.as<T>()),
        residual(args.residual.as<const T>()),
        shared(args.shared.as<const T>()),
        shared_gate(args.shared_gate.as<const float>()),
        gate_up(args.gate_up),
        down(args.down),
        columns(static_cast<int>(args.out.shape[1])),
        inner(static_cast<int>(args.down.inputs())),
        experts(static_cast<int>(args.logits.shape[1])),
        k(static_cast<int>(args.k)),
        renormalize(args.renormalize),
        clamps(args.activation == Activation::clamped_swiglu),
        epsilon(args.epsilon),
        limit(args.limit) {}
};

// Of lane j: the row's expert number j and its weight.
struct Chosen {
  int expert = 0;
  float weight = 0;
};

template <typename T>
__device__ __forceinline__ Chosen choose(const Params<T>& p) {
  Chosen own;
  const auto put = [&](int j, float power, int expert) {
    if (threadIdx.x % 32 == j) own.expert = expert, own.weight = power;
  };
  float divisor = 0;
  if (p.experts <= 128) {
    divisor = choose_experts<4>(p.logits, p.experts, p.k, p.renormalize, put);
  } else if (p.experts <= 256) {
    divisor = choose_experts<8>(p.logits, p.experts, p.k, p.renormalize, put);
  } else {
    divisor = choose_experts<32>(p.logits, p.experts, p.k, p.renormalize, put);
  }
  own.weight /= divisor;
  return own;
}

// Up to 8 rows of a weight, from the first on.
struct Rows {
  long long first;
  int count;
};

// Twice 8 outputs of an expert, as a warp copies them.
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

// Bytes of a row in shared memory: whole stages, which are of 128 inputs at most.
__host__ __device__ constexpr int row_bytes_of(int inputs) {
  return (inputs + 127) / 128 * 256;
}

// Writes a row to shared memory as stages want it, by `threads` threads. Rows are whole vectors.
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

// The norm's factor of x, by all threads of the block. sums: in shared memory.
template <typename T>
__device__ __forceinline__ float norm_scale(const Params<T>& p, float* sums) {
  const int lane = threadIdx.x % 32, slots = norm_slots(p.columns);
  for (int chunk = threadIdx.x / 32; chunk < slots; chunk += blockDim.x / 32) {
    const int vector = chunk * 32 + lane;
    const float sum =
        rms_norm_chunk(vector < p.columns / 8 ? load_vector(p.x + vector * 8) : Vector<T>{});
    if (lane == 0) sums[chunk] = sum;
  }
  __syncthreads();
  return rms_norm_scale(rms_norm_add_chunks(sums, slots), 1.0f / static_cast<float>(p.columns),
                        p.epsilon);
}

template <typename T>
__device__ __forceinline__ T activate(const Params<T>& p, float gate, float up) {
  if (!p.clamps) return narrow<T>(gated_sum<T>(gate, up));
  return narrow<T>(clamped_swiglu<T>(widen(narrow<T>(gate)), widen(narrow<T>(up)), p.limit));
}

// --- the kernels ---------------------------------------------------------------------------------

constexpr int gate_up_shared(int stage_bytes, int columns) {
  return kWarps * kGateUpStages * stage_bytes + row_bytes_of(columns) + norm_slots(columns) * 4;
}

template <typename T, WeightFormat kFormat>
__global__ void __launch_bounds__(kWarps * 32, kBlocks) gate_up_kernel(const Params<T> p) {
  using Here = Stage<kFormat, T>;
  extern __shared__ __align__(128) char shared[];
  constexpr int kRing = kGateUpStages * Here::kBytes;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const char* const ring = shared + warp * kRing;
  const unsigned ring_address = address_of(ring);
  auto* const row = reinterpret_cast<Vector<T>*>(shared + kWarps * kRing);
  auto* const sums = reinterpret_cast<float*>(shared + kWarps * kRing + row_bytes_of(p.columns));

  begin_after_previous_kernel();
  const Chosen chosen = choose(p);
  const int tiles = (p.inner + 7) / 8, items = p.k * tiles;
  const int workers = static_cast<int>(gridDim.x) * kWarps;
  const auto tile_of = [&](int item) {
    const int expert = __shfl_sync(~0u, chosen.expert, item / tiles);
    const int column = item % tiles * 8, count = p.inner - column;
    const long long first = static_cast<long long>(expert) * 2 * p.inner + column;
    return Tile<Here>(p.gate_up, {first, count}, {first + p.inner, count});
  };
  int item = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  const auto start = [&](const Tile<Here>& tile) {
#pragma unroll 1
    for (int stage = 0; stage < kGateUpStages; ++stage) {
      if (stage < tile.stages()) tile.copy(stage, ring_address + stage * Here::kBytes);
      commit_copies();
    }
  };
  // Weights first: x and its norm come while these are on their way.
  if (item < items) start(tile_of(item));
  float scale = 1;
  if (p.norm_weight != nullptr) scale = norm_scale(p, sums);
  put_row<Here>(row, p.columns, threadIdx.x, kWarps * 32, [&](int vector) {
    const Vector<T> x = load_vector(p.x + vector * 8);
    return p.norm_weight == nullptr
               ? x
               : rms_norm_apply(x, scale, load_vector(p.norm_weight + vector * 8));
  });
  __syncthreads();

  for (bool first = true; item < items; item += workers, first = false) {
    const Tile<Here> tile = tile_of(item);
    if (!first) start(tile);
    typename Here::Sums d;
    int slot = 0;
#pragma unroll 1
    for (int stage = 0; stage < tile.stages(); ++stage) {
      wait_for_copies<kGateUpStages - 1>();
      __syncwarp();
      d.add(ring + slot * Here::kBytes, address_of(row) + stage * Here::kInputs * 2);
      __syncwarp();
      if (stage + kGateUpStages < tile.stages())
        tile.copy(stage + kGateUpStages, ring_address + slot * Here::kBytes);
      commit_copies();
      slot = slot + 1 == kGateUpStages ? 0 : slot + 1;
    }
    const int of_row = item / tiles, column = item % tiles * 8 + lane / 4;
    const int expert = __shfl_sync(~0u, chosen.expert, of_row);
    if (lane % 4 == 0 && column < p.inner) {
      const long long output = static_cast<long long>(expert) * 2 * p.inner + column;
      p.activated[of_row * p.inner + column] = activate(
          p, d.get(0) + p.gate_up.bias_of(output), d.get(1) + p.gate_up.bias_of(output + p.inner));
    }
  }
}

// Warps of the second kernel that share an expert's inputs.
__host__ __device__ constexpr int splits_of(int k) {
  return (kDownWarps + k - 1) / k;
}
// Of the second kernel: rows of `activated`, then the warps' rings, then their sums.
constexpr int down_shared(int stage_bytes, int stages, int k, int inner) {
  const int warps = k * splits_of(k);
  return k * row_bytes_of(inner) + warps * (stages * stage_bytes + kTile * 4);
}

// Of a warp that has the sums of all experts: the end of a row's outputs, one of each lane.
template <typename T>
__device__ __forceinline__ void combine(const Params<T>& p, const Chosen& chosen, const float* sums,
                                        int first) {
  const int lane = threadIdx.x % 32, column = first + lane, splits = splits_of(p.k);
  const bool inside = lane < kTile && column < p.columns;
  float sum = 0;
  for (int j = 0; j < p.k; ++j) {
    const float weight = __shfl_sync(~0u, chosen.weight, j);
    const int expert = __shfl_sync(~0u, chosen.expert, j);
    if (!inside) continue;
    float of_expert = 0;
    for (int split = 0; split < splits; ++split)
      of_expert += sums[(j * splits + split) * kTile + lane];
    of_expert += p.down.bias_of(static_cast<long long>(expert) * p.columns + column);
    sum = fmaf(weight, widen(narrow<T>(of_expert)), sum);
  }
  if (!inside) return;
  if (p.shared != nullptr) {
    const float gate = 1.0f / (1.0f + expf(-p.shared_gate[0]));
    sum = fmaf(gate, widen(p.shared[column]), sum);
  }
  T result = narrow<T>(sum);
  if (p.residual != nullptr)
    result = narrow<T>(__fadd_rn(widen(p.residual[column]), widen(result)));
  p.out[column] = result;
}

// grid: tiles of 16 columns.
template <typename T, WeightFormat kFormat, int kStages>
__global__ void __launch_bounds__(512, 1) down_kernel(const Params<T> p) {
  using Here = Stage<kFormat, T>;
  extern __shared__ __align__(128) char shared[];
  constexpr int kRing = kStages * Here::kBytes;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const int splits = splits_of(p.k), of_row = warp / splits, split = warp % splits;
  const int row_bytes = row_bytes_of(p.inner), first = static_cast<int>(blockIdx.x) * kTile;
  char* const row = shared + of_row * row_bytes;
  char* const ring = shared + p.k * row_bytes + warp * kRing;
  auto* const sums = reinterpret_cast<float*>(shared + p.k * row_bytes + warps * kRing);

  // The logits were there before the kernel before this one began.
  const Chosen chosen = choose(p);
  const int expert = __shfl_sync(~0u, chosen.expert, of_row);
  const long long first_row = static_cast<long long>(expert) * p.columns + first;
  const Tile<Here> tile(p.down, {first_row, p.columns - first},
                        {first_row + 8, p.columns - first - 8});
  const int stages = (tile.stages() - split + splits - 1) / splits;
#pragma unroll 1
  for (int stage = 0; stage < kStages; ++stage) {
    if (stage < stages) tile.copy(stage * splits + split, address_of(ring) + stage * Here::kBytes);
    commit_copies();
  }
  begin_after_previous_kernel();
  put_row<Here>(
      reinterpret_cast<Vector<T>*>(row), p.inner, split * 32 + lane, splits * 32,
      [&](int vector) { return load_vector(p.activated + of_row * p.inner + vector * 8); });
  __syncthreads();

  typename Here::Sums d;
  int slot = 0;
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    wait_for_copies<kStages - 1>();
    __syncwarp();
    d.add(ring + slot * Here::kBytes,
          address_of(row) + (stage * splits + split) * Here::kInputs * 2);
    __syncwarp();
    if (stage + kStages < stages)
      tile.copy((stage + kStages) * splits + split, address_of(ring) + slot * Here::kBytes);
    commit_copies();
    slot = slot + 1 == kStages ? 0 : slot + 1;
  }
  if (lane % 4 == 0) {
    sums[warp * kTile + lane / 4] = d.get(0);
    sums[warp * kTile + 8 + lane / 4] = d.get(1);
  }
  __syncthreads();
  if (warp == 0) combine(p, chosen, sums, first);
}

// --- launching -----------------------------------------------------------------------------------

constexpr int kManyStages = 12, kFewStages = 4;

// Of the second kernel: as many as have room beside the first.
template <int kStageBytes>
int down_stages(const OneRowExperts& args) {
  const int k = static_cast<int>(args.k), inner = static_cast<int>(args.down.inputs());
  for (const int stages : {kManyStages, 8}) {
    if (down_shared(kStageBytes, stages, k, inner) <= kMaxSharedBytes) return stages;
  }
  return kFewStages;
}

// With as much shared memory on a multiprocessor as there is, so that blocks of both kernels have
// room there together.
template <typename... Args>
void launch_with_memory(const char* what, void (*kernel)(Args...), unsigned blocks, int threads,
                        int shared, cudaStream_t stream, const Args&... args) {
  nvllm::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), what);
  nvllm::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                          cudaSharedmemCarveoutMaxShared),
                     what);
  launch_early(what, kernel,
               LaunchShape{dim3(blocks), dim3(static_cast<unsigned>(threads)),
                           static_cast<std::size_t>(shared)},
               stream, args...);
}

template <typename T, WeightFormat kFormat>
void launch(const OneRowExperts& args, cudaStream_t stream) {
  using Here = Stage<kFormat, T>;
  const Params<T> p(args);
  const int multiprocessors = nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount);
  launch_with_memory("launching one_row_experts", gate_up_kernel<T, kFormat>,
                     static_cast<unsigned>(multiprocessors * kBlocks), kWarps * 32,
                     gate_up_shared(Here::kBytes, p.columns), stream, p);
  const int stages = down_stages<Here::kBytes>(args);
  const auto kernel = stages == kManyStages ? down_kernel<T, kFormat, kManyStages>
                      : stages == 8         ? down_kernel<T, kFormat, 8>
                                            : down_kernel<T, kFormat, kFewStages>;
  launch_with_memory("launching one_row_experts", kernel, blocks_for(p.columns, kTile),
                     p.k * splits_of(p.k) * 32, down_shared(Here::kBytes, stages, p.k, p.inner),
                     stream, p);
}

template <typename T, WeightFormat kFloats>
void launch_format(const OneRowExperts& args, cudaStream_t stream) {
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

bool takes_one_row(const OneRowExperts& args) {
  const bool activates =
      args.activation == Activation::silu || args.activation == Activation::clamped_swiglu;
  if (!activates || args.out.dtype == DType::f32 || args.k > kMaxOneRow) return false;
  if (args.down.inputs() == 0) return false;  // a rank without a part of experts
  if (args.gate_up.format != args.down.format || !takes_format(args.gate_up) ||
      !takes_format(args.down)) {
    return false;
  }
  const int k = static_cast<int>(args.k);
  constexpr int kStageBytes = 1024 + kTile * 4;
  const int most = nvllm::cuda::device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return down_shared(kStageBytes, kFewStages, k, static_cast<int>(args.down.inputs())) <= most &&
         gate_up_shared(kStageBytes, static_cast<int>(args.out.shape[1])) <= most &&
         args.x.aligned(16) && args.norm_weight.aligned(16) && args.activated.aligned(16);
}

void one_row_experts(const OneRowExperts& args, Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  args.out.dtype == DType::bf16 ? launch_format<Bf16, WeightFormat::bf16>(args, native)
                                : launch_format<F16, WeightFormat::f16>(args, native);
}

}  // namespace nvllm::kernels::cuda
