// GEMV with a quantized weight: up to 16 rows of bfloat16 or float16, bound by the reading of the
// weight.
//
// As in the GEMV with a weight of 16-bit floats (gemv.cuh), a block makes kTiles tiles of 8 outputs
// for all rows, its warps share the inputs, and their sums meet in shared memory. A slice is a
// block of 64 bytes of each output's weights. A warp has a ring of kSlices slices in shared memory, which
// it fills and empties by itself: weights, their scales, and x, unless a norm has left all rows of
// it there. The weight is the left operand, so that 16 outputs are multiplied at once: a lane reads
// its 16 bytes of two outputs' weights, which become, in registers, its part of operand A for as
// many mma as a slice has inputs / 16. The rows of x are the columns of operand B, by ldmatrix.
//
// Values stay what is stored: scales are applied to sums over a `unit` of inputs, all of one group,
// and offsets to sums of x, which come from an mma with ones.
#pragma once

#include "kernels/gemm/sm80/gemv.cuh"
#include "kernels/gemm/sm80/quantized_values.cuh"

namespace nvllm::kernels::cuda {

// The weight of a GEMM: see kernels/gemm/quantized_weight.h.
struct QuantizedOperand {
  const char* values;
  const unsigned* scales;  // float32, or scale and offset in float16
  int row_bytes, row_groups;
  int group_bits;  // groups are of 2^group_bits inputs

  explicit QuantizedOperand(const GemmWeight& weight)
      : values(weight.values.as<const char>()),
        scales(weight.quantized.scales.as<const unsigned>()),
        row_bytes(static_cast<int>(weight.quantized_shape().row_bytes())),
        row_groups(static_cast<int>(weight.quantized_shape().groups())),
        group_bits(4) {
    while (1 << group_bits < weight.quantized.group) ++group_bits;
  }
};

// --- pieces --------------------------------------------------------------------------------------

// Copies of weights and of a scale into shared memory; zeros if not `inside`.
__device__ __forceinline__ void copy_weights(unsigned to, const char* from, bool inside) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_scale(unsigned to, const unsigned* from, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(inside ? 4 : 0)
               : "memory");
}

__device__ __forceinline__ void load_words(unsigned (&words)[4], unsigned from) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ unsigned load_word(unsigned from) {
  unsigned word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
  return word;
}
__device__ __forceinline__ void store_words(unsigned to, const unsigned (&words)[4]) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]),
               "r"(words[2]), "r"(words[3])
               : "memory");
}
// Four tiles of 8 rows of 16 bytes, of which each lane names one.
__device__ __forceinline__ void load_tiles(unsigned (&tiles)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
               : "r"(address)
               : "memory");
}

// A warp's slice in shared memory: weights by tile and lane, scales by tile, unit and output, then
// rows of x, of which 8 lie in different banks.
template <int kTiles, int kUnits, int kInputs>
struct SliceLayout {
  static constexpr int kTileBytes = 32 * 16, kUnitBytes = kTileOutputs * 4;
  static constexpr int kScales = kTiles * kTileBytes;
  static constexpr int kX = kScales + kTiles * kUnits * kUnitBytes;
  static constexpr int kXRowBytes = kInputs * 2 + 16;

  __host__ __device__ static constexpr int bytes(int rows) { return kX + rows * kXRowBytes; }
};

// Operand B of a slice, of 8 rows of x or twice 8.
template <WeightFormat kFormat, typename T, int kHalves>
struct RowsFragments {
  static constexpr int kSteps = kBlockInputs<kFormat> / 16;
  unsigned b[kHalves][kSteps][2];

  // `slice`: where the first row's begins. Rows that do not exist repeat the last one; nobody looks
  // at their sums.
  __device__ __forceinline__ void load(unsigned slice, int row_bytes, int rows) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const unsigned row = slice + min(half * 8 + lane % 8, rows - 1) * row_bytes + lane / 8 * 16;
#pragma unroll
      for (int step = 0; step < kSteps; step += 2) {
        unsigned tiles[4];
        load_tiles(tiles, row + step * 32);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          b[half][step + i / 2][i % 2] = kEnlargesX<kFormat, T> ? enlarged(tiles[i]) : tiles[i];
        }
        if constexpr (kCrossed<kFormat>) {
          cross(b[half][step][0], b[half][step][1]);
          cross(b[half][step + 1][0], b[half][step + 1][1]);
        }
      }
    }
  }
};

// Of a warp: where it gets its slices of weights and x.
template <typename T, WeightFormat kFormat, int kUnit, int kTiles, bool kNorm>
struct SliceSource {
  static constexpr int kInputs = kBlockInputs<kFormat>, kUnits = kInputs / kUnit;
  static constexpr int kChunks = kInputs / 8, kRowsAtOnce = 32 / kChunks;  // of x, by the warp
  using Layout = SliceLayout<kTiles, kUnits, kInputs>;

  const char* weights[kTiles];  // this lane's 16 bytes of slice 0
  const unsigned* scales;
  int row_scales[kTiles];  // where those of its output begin
  bool inside[kTiles];
  int group_bits, rows, inputs, lane;
  const T* x;  // this lane's first 16 bytes
  long long x_stride;

  // share, gated: as in the kernel.
  __device__ __forceinline__ SliceSource(const GemmParams<T>& p, const QuantizedOperand& q,
                                         int share, bool gated)
      : scales(q.scales),
        group_bits(q.group_bits),
        rows(p.rows),
        inputs(p.inputs),
        lane(threadIdx.x % 32) {
    const int first_output = blockIdx.x * share, outputs = min(share, p.outputs - first_output);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int place = tile * kTileOutputs + lane / 4;
      const bool let_through = gated && place >= share;
      const int output = let_through ? place - share : place;
      inside[tile] = output < outputs;
      const long long row =
          inside[tile] ? first_output + output + (let_through ? p.outputs : 0) : 0;
      weights[tile] = q.values + row * q.row_bytes + lane % 4 * 16;
      row_scales[tile] = static_cast<int>(row) * q.row_groups;
    }
    x_stride = p.x_stride * kRowsAtOnce;
    x = p.x + lane / kChunks * p.x_stride + lane % kChunks * 8;
  }

  __device__ __forceinline__ void copy_weights_of(int slice, unsigned to) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      copy_weights(to + tile * Layout::kTileBytes + lane * 16,
                   weights[tile] + slice * kGemvSliceBytes, inside[tile]);
    }
    if (lane % 4 >= kUnits) return;
    const int group = (slice * kInputs + lane % 4 * kUnit) >> group_bits;
    const unsigned place = to + Layout::kScales + lane % 4 * Layout::kUnitBytes + lane / 4 * 4;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      copy_scale(place + tile * kUnits * Layout::kUnitBytes, scales + (row_scales[tile] + group),
                 inside[tile]);
  }
  // x of the first kSlices slices. Few rows go through registers: so they need not wait for the
  // weights, whose copies were started before.
  template <int kSlices>
  __device__ __forceinline__ void copy_first_x(int first, int count, unsigned ring,
                                               int slice_bytes) const {
    if (rows > kRowsAtOnce) {
#pragma unroll
      for (int i = 0; i < kSlices; ++i) {
        if (i < count) copy_x_of(first + i, ring + i * slice_bytes);
        commit_copies();
      }
      return;
    }
    if (lane / kChunks >= rows) return;
    Vector<T> vectors[kSlices];
#pragma unroll
    for (int i = 0; i < kSlices; ++i) {
      vectors[i] = {};
      if (i < count && (first + i) * kInputs + lane % kChunks * 8 < inputs)
        vectors[i] = load_vector(x + (first + i) * kInputs);
    }
#pragma unroll
    for (int i = 0; i < kSlices; ++i) {
      const unsigned to = ring + i * slice_bytes + Layout::kX;
      if (i < count)
        store_words(to + lane / kChunks * Layout::kXRowBytes + lane % kChunks * 16,
                    vectors[i].word);
    }
  }
  __device__ __forceinline__ void copy_x_of(int slice, unsigned to) const {
    const int input = slice * kInputs + lane % kChunks * 8;
    const bool exists = input < inputs;
    const T* from = exists ? x + slice * kInputs : x;
    unsigned place = to + Layout::kX + lane / kChunks * Layout::kXRowBytes + lane % kChunks * 16;
#pragma unroll 1
    for (int row = lane / kChunks; row < rows; row += kRowsAtOnce) {
      copy_chunk(place, from, exists);
      from += x_stride, place += kRowsAtOnce * Layout::kXRowBytes;
    }
  }
};

// --- the kernel ----------------------------------------------------------------------------------

// kUnit: inputs whose scale is one, at least 16. kNorm: see NormedRows, which come first in shared
// memory; p.inputs are whole slices then. The rest is as in gemv_kernel.
template <typename T, WeightFormat kFormat, int kUnit, bool kNorm, bool kGated, int kMaxRows,
          int kTiles, int kSlices, int kWarps, int kBlocks>
__global__ void __launch_bounds__(kWarps * 32, kBlocks)
    quantized_gemv_kernel(const GemmParams<T> p, const QuantizedOperand q, int share,
                          bool next_comes_early) {
  using Values = QuantizedValues<kFormat, T>;
  using Source = SliceSource<T, kFormat, kUnit, kTiles, kNorm>;
  using Layout = typename Source::Layout;
  static_assert(kTiles % 2 == 0);
  constexpr int kOutputs = kTiles * kTileOutputs, kHalves = kMaxRows / 8;
  constexpr int kInputs = kBlockInputs<kFormat>, kSteps = kInputs / 16;  // of a slice
  constexpr int kUnits = kInputs / kUnit, kUnitSteps = kUnit / 16;
  constexpr bool kOffsets = kFormat != WeightFormat::fp8;
  __shared__ float sums[kWarps][kHalves * 8][kOutputs];
  extern __shared__ __align__(128) char shared[];

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int slices = (p.inputs + kInputs - 1) / kInputs;
  const int first = slices * warp / kWarps, count = slices * (warp + 1) / kWarps - first;
  const NormedRows<T> normed(shared, p);
  const int normed_bytes = kNorm ? normed_shared_bytes(p.rows, p.inputs) : 0;
  const int slice_bytes = Layout::bytes(kNorm ? 0 : p.rows);
  const unsigned base = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const unsigned ring = base + normed_bytes + warp * kSlices * slice_bytes;
  const Source source(p, q, share, kGated);

  // Constants: before the kernel before this one has ended. Each slice is a group of copies.
  if constexpr (kNorm) {
    normed.begin(p);
    commit_copies();
  }
#pragma unroll
  for (int i = 0; i < kSlices; ++i) {
    if (i < count) source.copy_weights_of(first + i, ring + i * slice_bytes);
    commit_copies();
  }
  begin_after_previous_kernel(next_comes_early);
  if constexpr (!kNorm) source.template copy_first_x<kSlices>(first, count, ring, slice_bytes);
  // What the sums are added to is on its way meanwhile.
  OwnOutput own{static_cast<int>(threadIdx.x) / kOutputs, 0};
  const int first_output = blockIdx.x * share, own_column = threadIdx.x % kOutputs;
  if (!kGated && own.row < p.rows && own_column < min(share, p.outputs - first_output)) {
    own.residual = residual_of(p, own.row, first_output + own_column);
  }
  if constexpr (kNorm) normed.template finish<kSlices>(p);

  // d: of 16 outputs, g and g + 8 of lanes 4 g to 4 g + 3, and two rows, 2 t and 2 t + 1.
  constexpr int kPairs = kTiles / 2;
  float d[kPairs][kHalves][4] = {};
  unsigned stage = ring;
  const unsigned ring_end = ring + kSlices * slice_bytes;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    wait_for_copies<kSlices - 1>();
    __syncwarp();
    RowsFragments<kFormat, T, kHalves> x;
    x.load(kNorm ? base + (first + i) * kInputs * 2 : stage + Layout::kX,
           kNorm ? normed.row_bytes : Layout::kXRowBytes, p.rows);
    unsigned w[kTiles][4], scales[kTiles][kUnits];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      load_words(w[tile], stage + tile * Layout::kTileBytes + lane * 16);
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        scales[tile][unit] = load_word(stage + Layout::kScales + lane / 4 * 4 +
                                       (tile * kUnits + unit) * Layout::kUnitBytes);
      }
    }
    __syncwarp();
    if (i + kSlices < count) {
      source.copy_weights_of(first + i + kSlices, stage);
      if (!kNorm) source.copy_x_of(first + i + kSlices, stage);
    }
    commit_copies();
    stage = stage + slice_bytes == ring_end ? ring : stage + slice_bytes;

    float x_sums[kHalves][kUnits][4] = {};
    if constexpr (kOffsets) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          multiply(T{}, x_sums[half][step / kUnitSteps], kOnes<T>, kOnes<T>, kOnes<T>, kOnes<T>,
                   x.b[half][step][0], x.b[half][step][1]);
        }
      }
    }
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      unsigned a[kSteps][2][2];  // by step, word of the step, output
#pragma unroll
      for (int output = 0; output < 2; ++output) {
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          unsigned pairs[2 * Values::kSteps];
          Values::unpack(w[2 * pair + output][word], pairs);
#pragma unroll
          for (int j = 0; j < 2 * Values::kSteps; ++j)
            a[word * Values::kSteps + j / 2][j % 2][output] = pairs[j];
        }
      }
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        const GroupScale scale[2] = {group_scale<kFormat, T>(scales[2 * pair][unit]),
                                     group_scale<kFormat, T>(scales[2 * pair + 1][unit])};
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          float part[4] = {};
#pragma unroll
          for (int step = unit * kUnitSteps; step < (unit + 1) * kUnitSteps; ++step) {
            multiply(T{}, part, a[step][0][0], a[step][0][1], a[step][1][0], a[step][1][1],
                     x.b[half][step][0], x.b[half][step][1]);
          }
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            float& sum = d[pair][half][j];
            sum = fmaf(scale[j / 2].scale, part[j], sum);
            if constexpr (kOffsets) sum = fmaf(scale[j / 2].offset, x_sums[half][unit][j % 2], sum);
          }
        }
      }
    }
  }

#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = half * 8 + lane % 4 * 2 + j % 2;
        const int column = pair * 2 * kTileOutputs + j / 2 * kTileOutputs + lane / 4;
        if (row < p.rows) sums[warp][row][column] = d[pair][half][j] * kSumUnit<kFormat, T>;
      }
    }
  }
  __syncthreads();
  add_and_store<kGated, kWarps>(p, sums, share, own);
}

}  // namespace nvllm::kernels::cuda
