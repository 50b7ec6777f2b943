// Grouped GEMMs with few rows per group on Hopper, bound by reading the weights of groups that have
// rows.
//
// Each multiprocessor runs one block. The work is cut into slots: 16 outputs of a group, or 8 gate
// rows and their up rows, for up to 8 of its rows (GroupUnits). Each block has equally many
// consecutive slots, to within one. Those of one unit form a `chunk`, whose segments, a fourth of
// the inputs of a slot each, are distributed evenly over the warps, so that no warp waits long for
// another one's last item. Partial sums of a slot in several warps are added at the end of the
// chunk. The sums of segments are always added in the same order, so a row's results do not depend
// on its group, on other rows or on the distribution of work.
//
// Each warp has a ring of boxes in shared memory, with the 128-byte swizzle, which continues from
// chunk to chunk. (bfloat16 boxes copied by TMA took a third longer: they are small.) A chunk's
// rows of x are kept completely in shared memory, in the order that the format requires. Outputs
// are the rows of operand A of the tensor cores, rows of x the columns of B.
#pragma once

#include "kernels/common/sm90/tma.cuh"
#include "kernels/gemm/sm80/grouped_params.cuh"
#include "kernels/gemm/sm80/quantized_gemv.cuh"

namespace nvllm::kernels::cuda::small_m_grouped {

inline constexpr int kWarps = 16, kThreads = kWarps * 32;
inline constexpr int kRows = 8, kSlotOutputs = 16;
inline constexpr int kBoxBytes = 128 * kSlotOutputs, kAlignment = 1024;
inline constexpr int kMinStages = 3, kMaxStages = 6;  // boxes of a warp's ring
// Segments of a slot's inputs, each with its own sum; these are added in order.
inline constexpr int kSegments = 4;

template <WeightFormat kFormat>
inline constexpr bool kFloats = kFormat == WeightFormat::bf16 || kFormat == WeightFormat::f16;
// Inputs in 128 bytes; words of scales of an output for these.
template <WeightFormat kFormat>
inline constexpr int kBoxInputs = kFloats<kFormat>               ? 64
                                  : kFormat == WeightFormat::fp8 ? 128
                                                                 : 256;
template <WeightFormat kFormat>
inline constexpr int kScaleWords = kFloats<kFormat>               ? 0
                                   : kFormat == WeightFormat::fp8 ? 1
                                                                  : 2;

template <WeightFormat kFormat>
inline constexpr int kScaleBytes = kScaleWords<kFormat>* kSlotOutputs * 4;  // of a box

// A weight as a lane copies it: all groups, `outputs` each.
struct Source {
  const char* values;
  const unsigned* scales;
  int row_bytes, row_scales;  // of an output: the latter in words
  int outputs, columns;       // columns: of out
};

template <typename T>
struct Params {
  GroupedParams<T> grouped;
  Source weight;
  int boxes;                      // of an output
  int stages;                     // of a warp's ring
  bool start_is_visible, clamps;  // Activation::clamped_swiglu
  float limit;
};

// Offsets into a block's shared memory. x_row: bytes of a row of x.
template <WeightFormat kFormat>
struct Layout {
  int scales, sums, barriers, units, x_row, x, end;

  __host__ __device__ constexpr Layout(int stages, int groups, int boxes) {
    scales = kWarps * stages * kBoxBytes;
    sums = scales + kWarps * stages * kScaleBytes<kFormat>;
    x_row = boxes * kBoxInputs<kFormat> * 2 + (kFloats<kFormat> ? 64 : 16);
    x = sums + kWarps * (kSegments - 1) * 32 * 16;
    barriers = x + kRows * x_row;
    units = barriers + kWarps * stages * 8;
    end = units + GroupUnits<kRows>::bytes(groups);
  }
};

// The outputs of lanes 4 g to 4 g + 3 are output_of(g) and 8 more. Adjacent quads have outputs
// whose box halves lie in different banks.
__device__ __forceinline__ int output_of(int g) {
  return g >> 1 | (g & 1) << 2;
}

#if __CUDA_ARCH__ >= 900

// The number of this warp, in a form that the compiler knows to be warp-uniform.
__device__ __forceinline__ int warp_number() {
  return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
}

// The slots of one unit that a block processes.
struct Chunk {
  GroupUnit unit;
  int first_slot, slots;
};

// The chunks of a block, in order.
class Chunks {
 public:
  __device__ __forceinline__ Chunks(const GroupUnits<kRows>& units, int slots_of_unit)
      : units_(units), slots_of_unit_(slots_of_unit) {
    const long long all = static_cast<long long>(units.count()) * slots_of_unit;
    next_ = static_cast<int>(all * blockIdx.x / gridDim.x);
    end_ = static_cast<int>(all * (blockIdx.x + 1) / gridDim.x);
  }
  __device__ __forceinline__ bool take(Chunk& chunk) {
    if (next_ >= end_) return false;
    const int unit = next_ / slots_of_unit_, first = unit * slots_of_unit_;
    chunk = {units_.at(unit), next_ - first, min(end_, first + slots_of_unit_) - next_};
    next_ += chunk.slots;
    return true;
  }

 private:
  const GroupUnits<kRows>& units_;
  int slots_of_unit_, next_, end_;
};

// A warp's segments of a chunk, [first, end), numbered across slots.
struct Share {
  int first, end;
  __device__ __forceinline__ Share(const Chunk& chunk, int warp) {
    first = chunk.slots * kSegments * warp / kWarps;
    end = chunk.slots * kSegments * (warp + 1) / kWarps;
  }
};

// The first box of a segment, in a slot with `boxes` boxes.
__device__ __forceinline__ int first_box(int segment, int boxes) {
  return segment / kSegments * boxes + segment % kSegments * boxes / kSegments;
}

// The next box of a slot, as a lane copies it: 16 bytes of every fourth output, and a scale.
// kGated: the first 8 outputs are gate rows, the last 8 up rows.
template <WeightFormat kFormat, bool kGated>
class NextBox {
 public:
  // The slot at `column`.
  __device__ __forceinline__ void set(const Source& source, int group, int column, int box) {
    const int lane = threadIdx.x % 32;
    const auto row_of = [&](int output) {
      const int in_half = column + (kGated ? output % 8 : output);
      // Missing outputs repeat the last one; their sums are not used.
      return static_cast<long long>(group) * source.outputs + min(in_half, source.columns - 1) +
             (kGated && output >= 8 ? source.columns : 0);
    };
    at_ = box * 128 + lane % 8 * 16;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      rows_[i] = source.values + row_of(lane / 8 + 4 * i) * source.row_bytes + at_;
    if constexpr (kWords > 0) {
      word_ = box * kWords + lane / 16;
      scales_ = source.scales + row_of(lane % 16) * source.row_scales + word_;
    }
  }

  // `to` and `scales` are the addresses of a box and its scales.
  __device__ __forceinline__ void copy(const Source& source, unsigned to, unsigned scales,
                                       const Barrier& full) {
    const int lane = threadIdx.x % 32, row = lane / 8, chunk = lane % 8;
    const unsigned place = to + row * 128 + (chunk ^ row) * 16;
    const bool inside = at_ < source.row_bytes;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      copy_weights((place ^ i % 2 * 64) + i * 512, rows_[i], inside);
      rows_[i] += 128;
    }
    at_ += 128;
    if constexpr (kWords > 0) {
      if (lane < kWords * 16) copy_word(scales + lane * 4, scales_, word_ < source.row_scales);
      scales_ += kWords, word_ += kWords;
    }
    full.arrive_after_copies();
  }

 private:
  static constexpr int kWords = kScaleWords<kFormat>;

  static __device__ __forceinline__ void copy_weights(unsigned to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
  }
  static __device__ __forceinline__ void copy_word(unsigned to, const void* from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
                 "r"(valid ? 4 : 0)
                 : "memory");
  }

  const char* rows_[4];
  const unsigned* scales_;
  int at_, word_;
};
inline constexpr int kArrivals = 32;  // of the barrier of a box

// Copies boxes into a warp's ring.
template <WeightFormat kFormat, bool kGated>
class Copies {
 public:
  static constexpr int kSlotColumns = kGated ? 8 : 16;  // of out

  __device__ __forceinline__ Copies(const Source& source, int boxes, int warp, const Chunks& chunks,
                                    unsigned ring, unsigned scales, unsigned barriers)
      : source_(source),
        boxes_(boxes),
        warp_(warp),
        chunks_(chunks),
        ring_(ring),
        scales_ring_(scales),
        barriers_(barriers) {
    more_ = next_chunk();
  }

  __device__ __forceinline__ void copy(int stage) {
    if (!more_) return;
    next_.copy(source_, ring_ + stage * kBoxBytes, scales_ring_ + stage * kScaleBytes<kFormat>,
               Barrier{barriers_ + stage * 8});
    if (++at_ == end_) {
      more_ = next_chunk();
    } else if (++box_ == boxes_) {
      box_ = 0, column_ += kSlotColumns;
      next_.set(source_, group_, column_, 0);
    }
  }

 private:
  __device__ __forceinline__ bool next_chunk() {
    Chunk chunk;
    while (chunks_.take(chunk)) {
      const Share share(chunk, warp_);
      at_ = first_box(share.first, boxes_), end_ = first_box(share.end, boxes_);
      if (at_ == end_) continue;
      group_ = chunk.unit.group;
      box_ = at_ % boxes_, column_ = (chunk.first_slot + at_ / boxes_) * kSlotColumns;
      next_.set(source_, group_, column_, box_);
      return true;
    }
    return false;
  }

  const Source& source_;
  int boxes_, warp_;
  Chunks chunks_;
  unsigned ring_, scales_ring_, barriers_;
  NextBox<kFormat, kGated> next_;
  bool more_;
  int at_, end_, box_, column_, group_;
};

// 16 inputs of x, in the form that the format requires.
template <WeightFormat kFormat, typename T>
__device__ __forceinline__ void arrange_pair(Vector<T> (&two)[2]) {
  if constexpr (!kFloats<kFormat>) {
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      unsigned step[2] = {two[0].word[word], two[1].word[word]};
      arrange_step<kFormat, T>(step);
      two[0].word[word] = step[0], two[1].word[word] = step[1];
    }
  }
}

__device__ __forceinline__ uint4 load_shared(unsigned address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// Half a box, 64 bytes of each output, in the form that PassSums takes.
template <WeightFormat kFormat>
struct HalfBox {
  static constexpr int kUnits = kFormat == WeightFormat::fp8 ? 1 : 4;
  unsigned words[2][4];
  unsigned scales[2][kUnits];
};

// The sums of a slot in a lane: outputs output_of(lane / 4) and 8 more, rows lane % 4 * 2 and the
// next.
template <typename T, WeightFormat kFormat>
struct Sums {
  static constexpr int kUnit = kFormat == WeightFormat::fp8 ? 64 : 32;
  PassSums<T, kFormat, kUnit, 1> sums;

  // x: at the box's first input. scales: of the box's outputs.
  __device__ __forceinline__ void add(unsigned box, unsigned scales, unsigned x, int x_row,
                                      int rows) {
    const int lane = threadIdx.x % 32, output = output_of(lane / 4);
    const unsigned of_output = box + output * 128;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      HalfBox<kFormat> w;
      const unsigned at = of_output + ((half * 4 + lane % 4) ^ output) * 16;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 four = load_shared(at + i * 1024);
        w.words[i][0] = four.x, w.words[i][1] = four.y;
        w.words[i][2] = four.z, w.words[i][3] = four.w;
        const int word = kFormat == WeightFormat::fp8 ? 0 : half * 16;
        unsigned bits;
        asm volatile("ld.shared.u32 %0, [%1];"
                     : "=r"(bits)
                     : "r"(scales + (word + i * 8 + output) * 4)
                     : "memory");
#pragma unroll
        for (int unit = 0; unit < HalfBox<kFormat>::kUnits; ++unit)
          w.scales[i][unit] = kFormat == WeightFormat::fp8 ? bits : bits >> unit * 8 & 255;
      }
      RowsFragments<kFormat, T, 1> fragments;
      fragments.load(x + half * kBlockInputs<kFormat> * 2, x_row, rows);
      sums.add(w, fragments);
    }
  }
  __device__ __forceinline__ float4 get() const {
    constexpr float kUnitOfSum = kSumUnit<kFormat, T>;
    return make_float4(sums.d[0][0] * kUnitOfSum, sums.d[0][1] * kUnitOfSum,
                       sums.d[0][2] * kUnitOfSum, sums.d[0][3] * kUnitOfSum);
  }
};

template <typename T>
struct FloatSums {
  float d[4] = {};

  __device__ __forceinline__ void add(unsigned box, unsigned, unsigned x, int x_row, int rows) {
    const int lane = threadIdx.x % 32, output = output_of(lane / 4);
    const unsigned of_output = box + output * 128;
    const unsigned of_row = x + min(lane / 4, rows - 1) * x_row + lane % 4 * 16;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned at = of_output + ((half * 4 + lane % 4) ^ output) * 16;
      const uint4 a = load_shared(at), a8 = load_shared(at + 1024);
      const uint4 b = load_shared(of_row + half * 64);
      multiply_add<T>(d, a.x, a8.x, a.y, a8.y, b.x, b.y);
      multiply_add<T>(d, a.z, a8.z, a.w, a8.w, b.z, b.w);
    }
  }
  __device__ __forceinline__ float4 get() const {
    return make_float4(d[0], d[1], d[2], d[3]);
  }
};
template <typename T>
struct Sums<T, WeightFormat::bf16> : FloatSums<T> {};
template <typename T>
struct Sums<T, WeightFormat::f16> : FloatSums<T> {};

// The rows of a unit in transfer to shared memory, in the form that the format requires: a thread
// has pairs of vectors, the first of which it holds in registers.
template <typename T, WeightFormat kFormat>
class Rows {
 public:
  __device__ __forceinline__ void load(const Params<T>& p, const GroupUnit& unit) {
    const int pair = static_cast<int>(threadIdx.x);
    if (pair < unit.rows * pairs_of(p)) load_pair(first_, p, unit, pair);
  }
  __device__ __forceinline__ void put(const Params<T>& p, const GroupUnit& unit, char* x,
                                      int x_row) {
    const int pairs = pairs_of(p), all = unit.rows * pairs;
    const auto place_of = [&](int pair) { return x + pair / pairs * x_row + pair % pairs * 32; };
    int pair = static_cast<int>(threadIdx.x);
    if (pair < all) put_pair(first_, place_of(pair));
#pragma unroll 1
    for (pair += kThreads; pair < all; pair += kThreads) {
      Pair own;
      load_pair(own, p, unit, pair);
      put_pair(own, place_of(pair));
    }
  }

 private:
  using Pair = Vector<T>[2];

  static __device__ __forceinline__ int pairs_of(const Params<T>& p) {
    return p.boxes * kBoxInputs<kFormat> / 16;
  }
  static __device__ __forceinline__ void load_pair(Pair& two, const Params<T>& p,
                                                   const GroupUnit& unit, int pair) {
    const int pairs = pairs_of(p), row = unit.first_row + pair / pairs;
    const T* const from = p.grouped.x + p.grouped.source_of(row) * p.grouped.inputs;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int input = (pair % pairs * 2 + half) * 8;
      two[half] = input < p.grouped.inputs ? load_vector(from + input) : Vector<T>{};
    }
  }
  static __device__ __forceinline__ void put_pair(Pair& two, char* to) {
    arrange_pair<kFormat, T>(two);
    auto* const vectors = reinterpret_cast<Vector<T>*>(to);
    vectors[0] = two[0], vectors[1] = two[1];
  }

  Pair first_;
};

__device__ __forceinline__ float4 sum_of(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

template <typename T>
__device__ __forceinline__ float gated(const Params<T>& p, float gate, float up) {
  if (!p.clamps) return gated_sum<T>(gate, up);
  return clamped_swiglu<T>(widen(narrow<T>(gate)), widen(narrow<T>(up)), p.limit);
}

// A slot's results.
template <bool kGated, typename T>
__device__ __forceinline__ void store(const Params<T>& p, const GroupUnit& unit, int slot,
                                      const float4& sums) {
  const GroupedParams<T>& g = p.grouped;
  const int lane = threadIdx.x % 32, row = lane % 4 * 2;
  const int column = slot * (kGated ? 8 : 16) + output_of(lane / 4);
  const auto bias_of = [&](int output) {
    return g.bias == nullptr
               ? 0.0f
               : widen(g.bias[static_cast<long long>(unit.group) * g.outputs + output]);
  };
  T* const out = g.out + static_cast<long long>(unit.first_row + row) * g.columns + column;
  const bool rows[2] = {row < unit.rows, row + 1 < unit.rows};
  const auto put = [&](int apart, float one, float two) {
    if (rows[0]) out[apart] = narrow<T>(one);
    if (rows[1]) out[g.columns + apart] = narrow<T>(two);
  };
  if (column < g.columns) {
    const float bias = bias_of(column);
    if constexpr (kGated) {
      const float of_up = bias_of(g.columns + column);
      put(0, gated(p, sums.x + bias, sums.z + of_up), gated(p, sums.y + bias, sums.w + of_up));
    } else {
      put(0, sums.x + bias, sums.y + bias);
    }
  }
  if (!kGated && column + 8 < g.columns) {
    const float bias = bias_of(column + 8);
    put(8, sums.z + bias, sums.w + bias);
  }
}

#endif

// grid: resident blocks.
template <typename T, WeightFormat kFormat, bool kGated>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_small_m_kernel(const __grid_constant__ Params<T> p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ char memory_of_block[];
  const Layout<kFormat> at(p.stages, p.grouped.groups, p.boxes);
  const auto unaligned = static_cast<unsigned>(__cvta_generic_to_shared(memory_of_block));
  const unsigned base = (unaligned + kAlignment - 1) & ~(kAlignment - 1);
  char* const shared = memory_of_block + (base - unaligned);
  const int warp = warp_number(), lane = threadIdx.x % 32;
  const unsigned barriers = base + at.barriers + warp * p.stages * 8;
  if (lane == 0) {
    for (int stage = 0; stage < p.stages; ++stage) Barrier{barriers + stage * 8}.init(kArrivals);
    fence_barrier_init();
  }
  const GroupUnits<kRows> units(shared + at.units, p.grouped.groups);
  if (!p.start_is_visible) pdl_begin();
  units.find(p.grouped.start);

  const int slots_of_unit = (p.grouped.columns + (kGated ? 7 : 15)) / (kGated ? 8 : 16);
  Chunks chunks(units, slots_of_unit);
  const unsigned ring = base + warp * p.stages * kBoxBytes;
  const unsigned scales = base + at.scales + warp * p.stages * kScaleBytes<kFormat>;
  Copies<kFormat, kGated> copies(p.weight, p.boxes, warp, chunks, ring, scales, barriers);
  Chunk chunk;
  Rows<T, kFormat> rows;
  bool more = chunks.take(chunk);
  if (p.start_is_visible) {
    for (int stage = 0; stage < p.stages; ++stage) copies.copy(stage);
    pdl_begin();
    if (more) rows.load(p, chunk.unit);
  } else {
    // If all copies of the ring were issued first, the rows would be late.
    copies.copy(0);
    if (more) rows.load(p, chunk.unit);
    for (int stage = 1; stage < p.stages; ++stage) copies.copy(stage);
  }

  auto* const shared_sums = reinterpret_cast<float4*>(shared + at.sums);
  int stage = 0;
  unsigned parity = 0;
  while (more) {
    rows.put(p, chunk.unit, shared + at.x, at.x_row);
    __syncthreads();
    const Share share(chunk, warp);
    float4 sum{};  // partial sum of the slot that was started last
    int segment = share.first, started = -1;
    for (; segment < share.end; ++segment) {
      const int slot = segment / kSegments, of_slot = segment % kSegments;
      const int first = of_slot * p.boxes / kSegments;
      const int end = (of_slot + 1) * p.boxes / kSegments;
      Sums<T, kFormat> sums;
#pragma unroll 1
      for (int box = first; box < end; ++box) {
        Barrier{barriers + stage * 8}.wait(parity);
        sums.add(ring + stage * kBoxBytes, scales + stage * kScaleBytes<kFormat>,
                 base + at.x + box * kBoxInputs<kFormat> * 2, at.x_row, chunk.unit.rows);
        __syncwarp();
        copies.copy(stage);
        if (++stage == p.stages) stage = 0, parity ^= 1;
      }
      if (of_slot == 0) {
        sum = sums.get(), started = slot;
      } else if (started == slot) {
        sum = sum_of(sum, sums.get());
      } else {
        shared_sums[(warp * (kSegments - 1) + of_slot - 1) * 32 + lane] = sums.get();
        continue;
      }
      if (of_slot + 1 < kSegments) continue;
      store<kGated>(p, chunk.unit, chunk.first_slot + slot, sum);
      started = -1;
    }
    const Chunk done = chunk;
    more = chunks.take(chunk);
    if (more) rows.load(p, chunk.unit);
    __syncthreads();
    if (started < 0) continue;
    // The rest of the slot is in the next warps' partial sums.
    for (int other = warp + 1; segment < (started + 1) * kSegments; ++segment) {
      while (Share(done, other).end <= segment) ++other;
      sum =
          sum_of(sum, shared_sums[(other * (kSegments - 1) + segment % kSegments - 1) * 32 + lane]);
    }
    store<kGated>(p, done.unit, done.first_slot + started, sum);
  }
#endif
}

}  // namespace nvllm::kernels::cuda::small_m_grouped
