// The experts of one row on Hopper, bound by reading their weights.
//
// As in sm80/single_token_moe.cu one kernel computes gate and up of the row's experts and a second
// one multiplies by `down` and adds up; both select the experts, so that the second one can load
// weights while the first one is running. Here weights are copied in boxes of 128 bytes of 16
// outputs into a warp's ring, as in grouped_small_m.cuh. The first kernel's warps split a block's
// boxes evenly, regardless of output boundaries. Blocks of both kernels fit on a multiprocessor
// together, in shared memory and registers.
#include "kernels/common/cuda_arch.h"
#include "kernels/gemm/sm90/grouped_small_m.cuh"
#include "kernels/moe/backends.h"
#include "kernels/moe/sm80/single_token_moe.cuh"

namespace nvllm::kernels::cuda {
namespace {

using single_token::activate, single_token::choose, single_token::Chosen, single_token::kMaxOneRow,
    single_token::kTile, single_token::Params, single_token::sum_squares, single_token::Weights;
namespace small_m = small_m_grouped;
using small_m::kBoxBytes, small_m::kBoxInputs, small_m::kScaleBytes, small_m::output_of;

constexpr int kGateUpWarps = 16, kGateUpStages = 3;
constexpr int kDownWarps = 8;  // at least
template <WeightFormat kFormat>
constexpr int kDownStages = kFormat == WeightFormat::mxfp4 ? 5 : 6;
// Registers per thread: 16 warps of the first kernel and 8 of the second use all of them.
constexpr int kGateUpRegisters = 80, kDownRegisters = 96;
constexpr int kAlignment = small_m::kAlignment;

// Whole vectors of 16 bytes; rows of x begin after them.
template <WeightFormat kFormat>
constexpr int ring_bytes(int warps, int stages) {
  return (warps * stages * (kBoxBytes + kScaleBytes<kFormat> + 8) + 15) / 16 * 16;
}
// Bytes of a row of x with this many boxes.
template <WeightFormat kFormat>
__host__ __device__ constexpr int row_bytes_of(int boxes) {
  return boxes * kBoxInputs<kFormat> * 2;
}
template <WeightFormat kFormat>
int boxes_of(std::int64_t inputs) {
  return static_cast<int>((inputs + kBoxInputs<kFormat> - 1) / kBoxInputs<kFormat>);
}

template <WeightFormat kFormat>
int gate_up_shared(std::int64_t columns) {
  return kAlignment + ring_bytes<kFormat>(kGateUpWarps, kGateUpStages) +
         row_bytes_of<kFormat>(boxes_of<kFormat>(columns)) +
         norm_slots(static_cast<int>(columns)) * 4;
}
template <WeightFormat kFormat>
int down_shared(int warps, int stages, int k, std::int64_t inner) {
  return kAlignment + ring_bytes<kFormat>(warps, stages) +
         k * row_bytes_of<kFormat>(boxes_of<kFormat>(inner));
}

// Warps of the second kernel that split an expert's inputs.
__host__ __device__ constexpr int splits_of(int k) {
  return k >= kDownWarps ? 1 : kDownWarps / k;
}

#if __CUDA_ARCH__ >= 900

// A warp's ring: boxes, then scales, then barriers, each for all warps. A block's ring begins at a
// multiple of kAlignment.
template <WeightFormat kFormat, int kStages>
class Ring {
 public:
  __device__ __forceinline__ Ring(unsigned base, int warp, int warps)
      : boxes_(base + warp * kStages * kBoxBytes),
        scales_(base + warps * kStages * kBoxBytes + warp * kStages * kScaleBytes<kFormat>),
        barriers_(base + warps * kStages * (kBoxBytes + kScaleBytes<kFormat>)+warp * kStages * 8) {}

  __device__ __forceinline__ void begin() const {
    if (threadIdx.x % 32 > 0) return;
#pragma unroll
    for (int i = 0; i < kStages; ++i) Barrier{barriers_ + i * 8}.init(small_m::kArrivals);
    fence_barrier_init();
  }
  template <bool kGated>
  __device__ __forceinline__ void copy(int at, small_m::NextBox<kFormat, kGated>& next,
                                       const small_m::Source& source) const {
    next.copy(source, boxes_ + at * kBoxBytes, scales_ + at * kScaleBytes<kFormat>,
              Barrier{barriers_ + at * 8});
  }
  // Waits for the next box and adds it to sums; x: at its first input.
  template <typename Sums>
  __device__ __forceinline__ void add_next(Sums& sums, unsigned x) const {
    Barrier{barriers_ + stage * 8}.wait(parity);
    sums.add(boxes_ + stage * kBoxBytes, scales_ + stage * kScaleBytes<kFormat>, x, 0, 1);
    __syncwarp();
  }
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }

  int stage = 0;
  unsigned parity = 0;

 private:
  unsigned boxes_, scales_, barriers_;
};

// All experts, with or without a gated activation.
template <bool kGated, typename T>
__device__ __forceinline__ small_m::Source source_of(const Weights<T>& weights, int columns) {
  return {weights.values,
          weights.scales,
          weights.row_bytes,
          weights.row_scales,
          kGated ? 2 * columns : columns,
          columns};
}

// 16 values of a row, vector pair number `pair`; zeros past its end.
template <typename T>
__device__ __forceinline__ void load_pair(Vector<T> (&two)[2], const T* row, int pair, int inputs) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int input = (pair * 2 + half) * 8;
    two[half] = input < inputs ? load_vector(row + input) : Vector<T>{};
  }
}
// Writes them to a row in shared memory in the form that the format requires.
template <WeightFormat kFormat, typename T>
__device__ __forceinline__ void put_pair(Vector<T> (&two)[2], char* row, int pair) {
  small_m::arrange_pair<kFormat, T>(two);
  auto* const to = reinterpret_cast<Vector<T>*>(row) + pair * 2;
  to[0] = two[0], to[1] = two[1];
}
template <WeightFormat kFormat>
__device__ __forceinline__ int pairs_of(int boxes) {
  return row_bytes_of<kFormat>(boxes) / 32;
}

// A warp's boxes of a block's slots, in order.
struct Boxes {
  int at, end, box, slot;

  __device__ __forceinline__ Boxes(int first_slot, int slots, int boxes, int warp)
      : at(slots * boxes * warp / kGateUpWarps),
        end(slots * boxes * (warp + 1) / kGateUpWarps),
        box(at % boxes),
        slot(first_slot + at / boxes) {}
  __device__ __forceinline__ void next(int boxes) {
    ++at;
    if (++box == boxes) box = 0, ++slot;
  }
};

#endif

template <typename T, WeightFormat kFormat>
__global__ void __maxnreg__(kGateUpRegisters)
    gate_up_kernel(const __grid_constant__ Params<T> p, int boxes) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ char memory_of_block[];
  __shared__ Chosen chosen;
  __shared__ float2 heads[kGateUpWarps][8];  // of slots that other warps have started
  const auto unaligned = static_cast<unsigned>(__cvta_generic_to_shared(memory_of_block));
  const unsigned base = (unaligned + kAlignment - 1) & ~(kAlignment - 1);
  char* const row =
      memory_of_block + (base - unaligned) + ring_bytes<kFormat>(kGateUpWarps, kGateUpStages);
  auto* const squares = reinterpret_cast<float*>(row + row_bytes_of<kFormat>(boxes));
  const int warp = small_m::warp_number(), lane = threadIdx.x % 32;
  Ring<kFormat, kGateUpStages> ring(base, warp, kGateUpWarps);
  ring.begin();

  // A thread has a pair of vectors of the row, and loads it before the weights, after which it
  // would be late.
  const int pair = static_cast<int>(threadIdx.x), pairs = pairs_of<kFormat>(boxes);
  Vector<T> x[2], norm[2];
  if (p.norm_weight != nullptr) load_pair(norm, p.norm_weight, pair, p.columns);
    // The first iteration is a dry run, with arbitrary logits, that brings the instructions into
    // the cache: this block is waiting anyway.
#pragma unroll 1
  for (int time = 0; time < 2; ++time) {
    if (time == 1) {
      pdl_begin();
      load_pair(x, p.x, pair, p.columns);
    }
    if (warp == 0) {
      choose(p, chosen);
    } else if (p.norm_weight != nullptr && time == 1) {
      sum_squares(p, squares, warp - 1, kGateUpWarps - 1);
    }
  }
  __syncthreads();
  const int of_expert = (p.inner + 7) / 8, all = p.k * of_expert;  // slots
  const int first_slot = all * static_cast<int>(blockIdx.x) / static_cast<int>(gridDim.x);
  const int slots =
      all * (static_cast<int>(blockIdx.x) + 1) / static_cast<int>(gridDim.x) - first_slot;
  const small_m::Source source = source_of<true>(p.gate_up, p.inner);
  Boxes next(first_slot, slots, boxes, warp);
  small_m::NextBox<kFormat, true> next_box;
  const auto set = [&] {
    next_box.set(source, chosen.experts[next.slot / of_expert], next.slot % of_expert * 8,
                 next.box);
  };
  if (next.at < next.end) set();
  const auto copy = [&](int stage) {
    if (next.at >= next.end) return;
    ring.copy(stage, next_box, source);
    next.next(boxes);
    if (next.box == 0 && next.at < next.end) set();
  };
  // Weights first: the row is arranged while they are in flight.
  for (int stage = 0; stage < kGateUpStages; ++stage) copy(stage);
  float scale = 1;
  if (p.norm_weight != nullptr) {
    scale = rms_norm_scale(rms_norm_add_chunks(squares, norm_slots(p.columns)),
                           1.0f / static_cast<float>(p.columns), p.epsilon);
  }
  const auto put = [&](int of_row) {
    if (p.norm_weight != nullptr) {
#pragma unroll
      for (int half = 0; half < 2; ++half) x[half] = rms_norm_apply(x[half], scale, norm[half]);
    }
    put_pair<kFormat, T>(x, row, of_row);
  };
  if (pair < pairs) put(pair);
  for (int other = pair + kGateUpWarps * 32; other < pairs; other += kGateUpWarps * 32) {
    load_pair(x, p.x, other, p.columns);
    if (p.norm_weight != nullptr) load_pair(norm, p.norm_weight, other, p.columns);
    put(other);
  }
  __syncthreads();

  // In lanes that are multiples of 4: a gate and its up value.
  float2 sum{}, bias{};
  const auto finish = [&](int slot) {
    const int of_row = slot / of_expert;
    const int column = slot % of_expert * 8 + output_of(lane / 4);
    if (lane % 4 > 0 || column >= p.inner) return;
    p.activated[of_row * p.inner + column] = activate(p, sum.x + bias.x, sum.y + bias.y);
  };
  Boxes here(first_slot, slots, boxes, warp);
  bool is_open = false;
  while (here.at < here.end) {
    const bool begins = here.box == 0;
    const int slot = here.slot, count = min(here.end - here.at, boxes - here.box);
    if (begins && p.gate_up.bias != nullptr) {
      const int column = slot % of_expert * 8 + output_of(lane / 4);
      const long long output =
          static_cast<long long>(chosen.experts[slot / of_expert]) * 2 * p.inner + column;
      if (column < p.inner) bias = {p.gate_up.bias_of(output), p.gate_up.bias_of(output + p.inner)};
    }
    small_m::Sums<T, kFormat> sums;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      ring.add_next(sums, address_of(row) + here.box * kBoxInputs<kFormat> * 2);
      copy(ring.stage);
      ring.advance();
      here.next(boxes);
    }
    const float4 d = sums.get();
    if (!begins) {
      if (lane % 4 == 0) heads[warp][lane / 4] = {d.x, d.z};
      continue;
    }
    sum = {d.x, d.z};
    is_open = here.box != 0;
    if (!is_open) finish(slot);
  }
  __syncthreads();
  if (!is_open) return;
  // The rest of the slot is in the next warps' partial sums.
  const int slot_end = (here.slot + 1 - first_slot) * boxes;
  for (int other = warp + 1; other < kGateUpWarps; ++other) {
    const Boxes more(first_slot, slots, boxes, other);
    if (more.at >= slot_end) break;
    if (more.at == more.end) continue;
    const float2 part = heads[other][lane / 4];
    sum.x += part.x, sum.y += part.y;
  }
  finish(here.slot);
#endif
}

// grid: tiles of 16 columns.
template <typename T, WeightFormat kFormat, int kWarps>
__global__ void __maxnreg__(kDownRegisters)
    down_kernel(const __grid_constant__ Params<T> p, int boxes) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ char memory_of_block[];
  __shared__ Chosen chosen;
  __shared__ float sums[kWarps][kTile];
  const auto unaligned = static_cast<unsigned>(__cvta_generic_to_shared(memory_of_block));
  const unsigned base = (unaligned + kAlignment - 1) & ~(kAlignment - 1);
  const int warp = small_m::warp_number(), lane = threadIdx.x % 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int splits = splits_of(p.k), of_row = warp / splits, split = warp % splits;
  const int row_bytes = row_bytes_of<kFormat>(boxes), first = static_cast<int>(blockIdx.x) * kTile;
  char* const row = memory_of_block + (base - unaligned) +
                    ring_bytes<kFormat>(warps, kDownStages<kFormat>) + of_row * row_bytes;
  Ring<kFormat, kDownStages<kFormat>> ring(base, warp, warps);
  ring.begin();

  // The logits were written before the previous kernel began.
  if (warp == 0) {
    choose(p, chosen);
    __syncwarp();
    if (lane < p.k) chosen.exp_logits[lane] /= chosen.divisor;
  }
  __syncthreads();
  const int expert = chosen.experts[of_row];
  const int begin = boxes * split / splits, end = boxes * (split + 1) / splits;
  const small_m::Source source = source_of<false>(p.down, p.columns);
  small_m::NextBox<kFormat, false> next;
  next.set(source, expert, first, begin);
  const auto copy = [&](int box, int stage) {
    if (box < end) ring.copy(stage, next, source);
  };
  for (int stage = 0; stage < kDownStages<kFormat>; ++stage) copy(begin + stage, stage);
  float bias[2] = {};
  if (split == 0 && p.down.bias != nullptr) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = first + output_of(lane / 4) + half * 8;
      if (column < p.columns)
        bias[half] = p.down.bias_of(static_cast<long long>(expert) * p.columns + column);
    }
  }
  pdl_begin();
  // Residual loads overlap the sums.
  const int column = first + lane;
  const bool ends = warp == 0 && lane < kTile && column < p.columns;
  float residual = 0, shared = 0, shared_gate = 0;
  if (ends && p.residual != nullptr) residual = widen(p.residual[column]);
  if (ends && p.shared != nullptr) shared = widen(p.shared[column]), shared_gate = p.shared_gate[0];
  for (int pair = split * 32 + lane; pair < pairs_of<kFormat>(boxes); pair += splits * 32) {
    Vector<T> x[2];
    load_pair(x, p.activated + of_row * p.inner, pair, p.inner);
    put_pair<kFormat, T>(x, row, pair);
  }
  __syncthreads();

  small_m::Sums<T, kFormat> of_warp;
#pragma unroll 1
  for (int box = begin; box < end; ++box) {
    ring.add_next(of_warp, address_of(row) + box * kBoxInputs<kFormat> * 2);
    copy(box + kDownStages<kFormat>, ring.stage);
    ring.advance();
  }
  const float4 d = of_warp.get();
  if (lane % 4 == 0) {
    sums[warp][output_of(lane / 4)] = d.x + bias[0];
    sums[warp][output_of(lane / 4) + 8] = d.z + bias[1];
  }
  __syncthreads();
  if (!ends) return;
  float sum = 0;
  for (int j = 0; j < p.k; ++j) {
    float of_expert = 0;
    for (int i = 0; i < splits; ++i) of_expert += sums[j * splits + i][lane];
    sum = fmaf(chosen.exp_logits[j], widen(narrow<T>(of_expert)), sum);
  }
  if (p.shared != nullptr) sum = fmaf(1.0f / (1.0f + expf(-shared_gate)), shared, sum);
  T result = narrow<T>(sum);
  if (p.residual != nullptr) result = narrow<T>(__fadd_rn(residual, widen(result)));
  p.out[column] = result;
#endif
}

template <typename T, WeightFormat kFormat>
void launch(const SingleTokenMoe& args, cudaStream_t stream) {
  const Params<T> p(args);
  const auto launch_kernel = [&](auto kernel, int blocks, int warps, int shared, int boxes) {
    nvllm::cuda::check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
        "launching single_token_moe");
    // The maximum shared memory carveout, for blocks of both kernels.
    nvllm::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                            cudaSharedmemCarveoutMaxShared),
                       "launching single_token_moe");
    launch_with_pdl(
        "launching single_token_moe", kernel,
        LaunchShape{dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(warps * 32)),
                    static_cast<std::size_t>(shared)},
        stream, p, boxes);
  };
  launch_kernel(gate_up_kernel<T, kFormat>,
                nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount), kGateUpWarps,
                gate_up_shared<kFormat>(p.columns), boxes_of<kFormat>(p.columns));
  const int warps = p.k * splits_of(p.k);
  const auto kernel = warps <= kDownWarps ? down_kernel<T, kFormat, kDownWarps>
                                          : down_kernel<T, kFormat, kMaxOneRow>;
  launch_kernel(kernel, static_cast<int>(blocks_for(p.columns, kTile)), warps,
                down_shared<kFormat>(warps, kDownStages<kFormat>, p.k, p.inner),
                boxes_of<kFormat>(p.inner));
}

template <WeightFormat kFormat>
bool fits(const SingleTokenMoe& args) {
  const int k = static_cast<int>(args.k), warps = k * splits_of(k);
  const int max_shared = nvllm::cuda::device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return gate_up_shared<kFormat>(args.out.shape[1]) <= max_shared &&
         down_shared<kFormat>(warps, kDownStages<kFormat>, k, args.down.inputs()) <= max_shared;
}

template <WeightFormat kFormat>
bool run_format(const SingleTokenMoe& args, cudaStream_t stream) {
  if (!fits<kFormat>(args)) return false;
  args.out.dtype == DType::bf16 ? launch<Bf16, kFormat>(args, stream)
                                : launch<F16, kFormat>(args, stream);
  return true;
}

}  // namespace

bool single_token_moe_sm90(const SingleTokenMoe& args, Stream& stream) {
  if (!runs_sm90a()) return false;
  const cudaStream_t native = nvllm::cuda::native(stream);
  switch (args.gate_up.format) {
    case WeightFormat::fp8: return run_format<WeightFormat::fp8>(args, native);
    case WeightFormat::mxfp4: return run_format<WeightFormat::mxfp4>(args, native);
    case WeightFormat::bf16:
      if (!fits<WeightFormat::bf16>(args)) return false;
      launch<Bf16, WeightFormat::bf16>(args, native);
      return true;
    default:
      if (!fits<WeightFormat::f16>(args)) return false;
      launch<F16, WeightFormat::f16>(args, native);
      return true;
  }
}

}  // namespace nvllm::kernels::cuda
