// Grouped GEMMs with many rows per group: tiles of 64 rows by 128 outputs.
//
// A block processes one item after the other: up to 64 rows of a group (GroupUnits) by a tile of
// its outputs, all inputs. Slices of 32 inputs of x and of the weights pass through a ring in
// shared memory. Each of four warps multiplies 32 rows by 64 outputs; a lane reads 16 bytes of a
// row at once, which are its part of the operands of two mma, as in gemv.cuh. So a row's sums have
// the bits of grouped_gemv.cuh.
#include "kernels/gemm/cuda/grouped_gemm.h"
#include "kernels/gemm/sm80/gemv.cuh"
#include "kernels/gemm/sm80/grouped_params.cuh"

namespace nvllm::kernels::cuda::tiles {

inline constexpr int kRows = 64, kOutputs = 128;
inline constexpr int kThreads = 128, kBlocks = 3;  // blocks on a multiprocessor
inline constexpr int kStages = 4;
inline constexpr int kRowBytes = kSliceInputs * 2;
inline constexpr int kStageBytes = (kRows + kOutputs) * kRowBytes;

inline constexpr int shared_bytes(int groups) {
  return kStages * kStageBytes + GroupUnits<kRows>::bytes(groups);
}

// What a thread copies for every stage of an item: 16 bytes of some rows of x and of the weights.
template <typename T>
struct Sources {
  static constexpr int kX = kRows / 32, kWeights = kOutputs / 32;
  const T* x[kX];
  const T* weight[kWeights];
  bool there[kWeights];

  // The outputs of a gated item alternate: 32 gate rows, 32 up rows, and so on.
  __device__ __forceinline__ Sources(const GroupedParams<T>& p, const GroupUnit& unit,
                                     int first_column, bool gated) {
    const int row = threadIdx.x / 4, chunk = threadIdx.x % 4 * 8;
#pragma unroll
    for (int i = 0; i < kX; ++i) {
      // Missing rows repeat the last one; their sums are not used.
      const int at = unit.first_row + min(row + 32 * i, unit.rows - 1);
      x[i] = p.x + p.source_of(at) * p.inputs + chunk;
    }
#pragma unroll
    for (int i = 0; i < kWeights; ++i) {
      const int column = first_column + row + 32 * (gated ? i / 2 : i);
      const int through = gated && i % 2 == 1 ? p.columns : 0;
      there[i] = column < p.columns;
      const long long output =
          static_cast<long long>(unit.group) * p.outputs + through + (there[i] ? column : 0);
      weight[i] = p.weight + output * p.inputs + chunk;
    }
  }

  // Starts to copy the slice at this input.
  __device__ __forceinline__ void copy(unsigned stage, int input, const GroupedParams<T>& p) const {
    const bool inside = input + static_cast<int>(threadIdx.x % 4 * 8) < p.inputs;
    const unsigned to = stage + threadIdx.x * 16;
#pragma unroll
    for (int i = 0; i < kX; ++i) {
      copy_chunk(to + i * 32 * kRowBytes, inside ? x[i] + input : p.x, inside);
    }
#pragma unroll
    for (int i = 0; i < kWeights; ++i) {
      const bool valid = inside && there[i];
      copy_chunk(to + (kRows + i * 32) * kRowBytes, valid ? weight[i] + input : p.weight, valid);
    }
  }
};

// A warp's sums of 2 x 16 rows and 8 tiles of 8 outputs.
using Sums = float[2][8][4];

template <typename T>
__device__ __forceinline__ void multiply_stage(const char* stage, Sums& sums) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto at = [&](int row) {
    return *reinterpret_cast<const Vector<T>*>(stage + row * kRowBytes + lane * 16);
  };
  Vector<T> a[2][2];
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i / 2][i % 2] = at(warp / 2 * 32 + i * 8);
#pragma unroll
  for (int tile = 0; tile < 8; ++tile) {
    const Vector<T> b = at(kRows + warp % 2 * 64 + tile * 8);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      multiply_add<T>(sums[i][tile], a[i][0].word[0], a[i][1].word[0], a[i][0].word[1],
                      a[i][1].word[1], b.word[0], b.word[1]);
      multiply_add<T>(sums[i][tile], a[i][0].word[2], a[i][1].word[2], a[i][0].word[3],
                      a[i][1].word[3], b.word[2], b.word[3]);
    }
  }
}

template <bool kGated, typename T>
__device__ __forceinline__ void store(const GroupedParams<T>& p, const GroupUnit& unit,
                                      int first_column, const Sums& sums) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first = first_column + warp % 2 * (kGated ? 32 : 64);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = warp / 2 * 32 + i * 8 + lane / 4;
    if (row >= unit.rows) continue;
    T* const out = p.out + static_cast<long long>(unit.first_row + row) * p.columns;
#pragma unroll
    for (int tile = 0; tile < (kGated ? 4 : 8); ++tile) {
      const int column = first + tile * 8 + lane % 4 * 2;
      if (column >= p.columns) continue;
      const float* const pair = &sums[i / 2][tile][i % 2 * 2];
      float low = pair[0], high = pair[1];
      p.add_bias(unit.group, column, low, high);
      if constexpr (kGated) {
        const float* const ups = &sums[i / 2][tile + 4][i % 2 * 2];
        float low_up = ups[0], high_up = ups[1];
        p.add_bias(unit.group, p.columns + column, low_up, high_up);
        low = gated_sum<T>(low, low_up), high = gated_sum<T>(high, high_up);
      }
      *reinterpret_cast<unsigned*>(out + column) = narrow_pair<T>(low, high);
    }
  }
}

// kGated: the first half of a group's outputs are gate rows, the others up rows.
template <typename T, bool kGated>
__global__ void __launch_bounds__(kThreads, kBlocks)
    grouped_tiles_kernel(const GroupedParams<T> p) {
  constexpr int kOwn = kGated ? kOutputs / 2 : kOutputs;  // columns of out
  extern __shared__ __align__(128) char shared[];
  pdl_begin();
  const GroupUnits<kRows> units(shared + kStages * kStageBytes, p.groups);
  units.find(p.start);
  const auto ring = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const int per_unit = (p.columns + kOwn - 1) / kOwn, items = units.count() * per_unit;
  const int slices = (p.inputs + kSliceInputs - 1) / kSliceInputs;
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    const GroupUnit unit = units.at(item / per_unit);
    const int first_column = item % per_unit * kOwn;
    const Sources<T> sources(p, unit, first_column, kGated);
    const auto copy = [&](int slice) {
      if (slice < slices) {
        sources.copy(ring + slice % kStages * kStageBytes, slice * kSliceInputs, p);
      }
      commit_copies();
    };
#pragma unroll
    for (int slice = 0; slice < kStages - 1; ++slice) copy(slice);
    Sums sums = {};
    for (int slice = 0; slice < slices; ++slice) {
      wait_for_copies<kStages - 2>();
      __syncthreads();  // all have copied this slice and multiplied the previous one
      copy(slice + kStages - 1);
      multiply_stage<T>(shared + slice % kStages * kStageBytes, sums);
    }
    store<kGated>(p, unit, first_column, sums);
    __syncthreads();  // all have multiplied; the next item's slices may come
  }
}

}  // namespace nvllm::kernels::cuda::tiles

namespace nvllm::kernels::cuda {
namespace {

template <typename T, bool kGated>
void launch(const GroupedGemm& grouped, cudaStream_t stream) {
  const GroupedParams<T> p(grouped);
  launch_grouped(tiles::grouped_tiles_kernel<T, kGated>, tiles::kBlocks, tiles::kThreads,
                 tiles::shared_bytes(p.groups), stream, p);
}

template <typename T>
void launch(const GroupedGemm& grouped, cudaStream_t stream) {
  grouped.epilogue == Epilogue::none ? launch<T, false>(grouped, stream)
                                     : launch<T, true>(grouped, stream);
}

}  // namespace

void grouped_tiles(const GroupedGemm& grouped, Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  grouped.weight.format == WeightFormat::bf16 ? launch<Bf16>(grouped, native)
                                              : launch<F16>(grouped, native);
}

}  // namespace nvllm::kernels::cuda
