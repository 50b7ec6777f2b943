// GEMV with a quantized weight: up to 16 rows of bfloat16 or float16, bound by the reading of the
// weight.
//
// It is laid out like the GEMV with a weight of 16-bit floats (gemv.cuh). A slice is a block of 64
// bytes of each output's weights; a lane has 16 bytes of it, which become, in registers, its part
// of operand B for as many mma as the block has inputs / 16. Operand A is x as ldmatrix reads it
// from shared memory. Rows that a norm has made are there as a whole; else a warp copies the slices
// that it needs itself, and each one's successor as soon as it has been read.
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

__device__ __forceinline__ unsigned load_scale(const unsigned* address, bool inside) {
  unsigned bits;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\nmov.b32 %0, 0;\n"
      "@p ld.global.nc.b32 %0, [%1];\n}"
      : "=r"(bits)
      : "l"(address), "r"(static_cast<int>(inside)));
  return bits;
}

// Four tiles of 8 rows of 16 bytes, of which each lane names one.
__device__ __forceinline__ void load_tiles(unsigned (&tiles)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
               : "r"(address)
               : "memory");
}

// Bytes of a row of x in a warp's part of shared memory: 8 rows lie in different banks.
__host__ __device__ constexpr int staged_row_bytes(int slices, int slice_inputs) {
  return slices * slice_inputs * 2 + 16;
}

// Operand A of a slice: of up to 8 or 16 rows, in natural order.
template <int kMaxRows, int kSteps>
struct RowsFragments {
  unsigned a[kSteps][4];

  // row: of this lane; see lane_row(). The slice begins at `base`.
  __device__ __forceinline__ void load(unsigned base) {
    const int lane = threadIdx.x % 32;
    if constexpr (kMaxRows <= 8) {
#pragma unroll
      for (int step = 0; step < kSteps; step += 2) {
        unsigned tiles[4];
        load_tiles(tiles, base + step * 32 + lane / 8 * 16);
        a[step][0] = tiles[0], a[step][2] = tiles[1], a[step + 1][0] = tiles[2];
        a[step + 1][2] = tiles[3];
        a[step][1] = a[step][3] = a[step + 1][1] = a[step + 1][3] = 0;
      }
    } else {
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
        load_tiles(a[step], base + step * 32 + lane / 16 * 16);
    }
  }
  // Rows that do not exist repeat the last one; nobody looks at their sums.
  static __device__ __forceinline__ int lane_row(int rows) {
    return min(static_cast<int>(threadIdx.x % kMaxRows), rows - 1);
  }
};

// --- the kernel ----------------------------------------------------------------------------------

// kUnit: inputs whose scale is one, at least 16. kNorm: see NormedRows; p.inputs are whole slices
// then. Otherwise shared memory is for p.rows rows of kWarps times kSlices slices. The rest is as
// in gemv_kernel.
template <typename T, WeightFormat kFormat, int kUnit, bool kNorm, bool kGated, int kMaxRows,
          int kTiles, int kSlices, int kWarps, int kBlocks>
__global__ void __launch_bounds__(kWarps * 32, kBlocks)
    quantized_gemv_kernel(const GemmParams<T> p, const QuantizedOperand q, int share,
                          bool next_comes_early) {
  using Values = QuantizedValues<kFormat, T>;
  constexpr int kOutputs = kTiles * kTileOutputs, kHalves = (kMaxRows + 7) / 8;
  constexpr int kInputs = kBlockInputs<kFormat>, kSteps = kInputs / 16;  // of a slice
  constexpr int kUnits = kInputs / kUnit, kUnitSteps = kUnit / 16;
  constexpr int kScales = (kSlices * kUnits + 3) / 4;  // of a round, of a lane
  constexpr bool kOffsets = kFormat != WeightFormat::fp8;
  constexpr int kStep = kSlices * kInputs;
  __shared__ float sums[kWarps][kHalves * 8][kOutputs];
  extern __shared__ __align__(128) char shared[];

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = lane / 4, of_four = lane % 4;
  const int first_output = blockIdx.x * share;
  const int outputs = min(share, p.outputs - first_output);

  // Of a tile, this lane has weights and scales of output `group`. Those of the first tile begin
  // here, those of the others `tile_stride` further each, except what gates let through, which
  // begins in the middle of a tile.
  const int first_row = first_output + group, let_through_rows = p.outputs - share;
  const char* const values =
      q.values + static_cast<long long>(first_row) * q.row_bytes + of_four * 16;
  const unsigned* const row_scales = q.scales + static_cast<long long>(first_row) * q.row_groups;
  const auto is_let_through = [&](int tile) {
    return kGated && tile * kTileOutputs + group >= share;
  };
  const auto is_inside = [&](int tile) {
    return tile * kTileOutputs + group - (is_let_through(tile) ? share : 0) < outputs;
  };
  const auto row_of = [&](int tile) -> long long {
    return tile * kTileOutputs + (is_let_through(tile) ? let_through_rows : 0);
  };
  Vector<T> w[kSlices][kTiles];
  const auto load = [&](int slice, int input) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const char* const from =
          values + row_of(tile) * q.row_bytes + input / kInputs * kGemvSliceBytes;
      w[slice][tile] =
          load_weights(reinterpret_cast<const T*>(from), input < p.inputs && is_inside(tile));
    }
  };
  // Unit u of a round has its scale in lane u % 4 of an output, as its number u / 4.
  unsigned scales[kTiles][kScales];
  const auto load_scales = [&](unsigned(&to)[kTiles][kScales], int input) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < kScales; ++i) {
        const int place = (input + (4 * i + of_four) * kUnit) >> q.group_bits;
        to[tile][i] = load_scale(row_scales + row_of(tile) * q.row_groups + place,
                                 place < q.row_groups && is_inside(tile));
      }
    }
  };
  int begin = warp * kStep;
  // The condition matters: out of straight-line code the compiler moves loads behind the wait
  // below.
  if (begin < p.inputs) {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) load(slice, begin + slice * kInputs);
    load_scales(scales, begin);
  }

  const NormedRows<T> normed(shared, p);
  if constexpr (kNorm) normed.begin(p);
  begin_after_previous_kernel(next_comes_early);
  // What the sums are added to is on its way meanwhile.
  OwnOutput own{static_cast<int>(threadIdx.x) / kOutputs, 0};
  const int own_column = threadIdx.x % kOutputs;
  if (!kGated && own.row < p.rows && own_column < outputs) {
    own.residual = residual_of(p, own.row, first_output + own_column);
  }

  // x: where this lane's row of the warp's first slice begins, and how a slice is copied there.
  constexpr int kRowBytes = staged_row_bytes(kSlices, kInputs);
  using Fragments = RowsFragments<kMaxRows, kSteps>;
  const unsigned base = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const unsigned staged = base + warp * p.rows * kRowBytes;
  const unsigned row_of_lane = kNorm ? base + Fragments::lane_row(p.rows) * normed.row_bytes
                                     : staged + Fragments::lane_row(p.rows) * kRowBytes;
  const auto copy_x = [&](int slice, int input) {
    constexpr int kChunks = kInputs / 8;
    for (int i = lane; i < p.rows * kChunks; i += 32) {
      const int row = i / kChunks, chunk = i % kChunks, first = input + chunk * 8;
      const bool inside = first < p.inputs;
      copy_chunk(staged + row * kRowBytes + slice * kInputs * 2 + chunk * 16,
                 p.x + row * p.x_stride + (inside ? first : 0), inside);
    }
  };
  if constexpr (kNorm) {
    normed.finish(p);
  } else {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      copy_x(slice, begin + slice * kInputs);
      commit_copies();
    }
  }

  float d[kTiles][4] = {};
  while (begin < p.inputs) {
    const int next = begin + kWarps * kStep;
    const bool more = next < p.inputs;
    [[maybe_unused]] unsigned next_scales[kTiles][kScales];
    if (more) load_scales(next_scales, next);
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      if (begin + slice * kInputs >= p.inputs) break;
      Fragments x;
      if constexpr (kNorm) {
        x.load(row_of_lane + (begin + slice * kInputs) * 2);
      } else {
        wait_for_copies<kSlices - 1>();
        __syncwarp();
        x.load(row_of_lane + slice * kInputs * 2);
        __syncwarp();
        if (more) copy_x(slice, next + slice * kInputs);
        commit_copies();
      }
      float x_sums[kUnits][4] = {};
      if constexpr (kOffsets) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          multiply(T{}, x_sums[step / kUnitSteps], x.a[step][0], x.a[step][1], x.a[step][2],
                   x.a[step][3], kOnes<T>, kOnes<T>);
        }
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        unsigned b[kSteps][2];
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          unsigned pairs[2 * Values::kSteps];
          Values::unpack(w[slice][tile].word[word], pairs);
#pragma unroll
          for (int i = 0; i < 2 * Values::kSteps; ++i)
            b[word * Values::kSteps + i / 2][i % 2] = pairs[i];
        }
#pragma unroll
        for (int unit = 0; unit < kUnits; ++unit) {
          float part[4] = {};
#pragma unroll
          for (int step = unit * kUnitSteps; step < (unit + 1) * kUnitSteps; ++step) {
            multiply(T{}, part, x.a[step][0], x.a[step][1], x.a[step][2], x.a[step][3], b[step][0],
                     b[step][1]);
          }
          const int which = slice * kUnits + unit;
#pragma unroll
          for (int column = 0; column < 2; ++column) {
            const int from = (of_four * 2 + column) * 4 + which % 4;
            const GroupScale scale =
                group_scale<kFormat, T>(__shfl_sync(~0u, scales[tile][which / 4], from));
#pragma unroll
            for (int half = 0; half < kHalves; ++half) {
              float& sum = d[tile][2 * half + column];
              sum = fmaf(scale.scale, part[2 * half + column], sum);
              if constexpr (kOffsets) sum = fmaf(scale.offset, x_sums[unit][2 * half], sum);
            }
          }
        }
      }
      if (more) load(slice, next + slice * kInputs);
    }
    if (more) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < kScales; ++i) scales[tile][i] = next_scales[tile][i];
      }
    }
    begin = next;
  }

#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) d[tile][i] *= kSumUnit<kFormat>;
  }
  put_sums<kHalves>(d, sums[warp]);
  __syncthreads();
  add_and_store<kGated, kWarps>(p, sums, share, own);
}

}  // namespace nvllm::kernels::cuda
