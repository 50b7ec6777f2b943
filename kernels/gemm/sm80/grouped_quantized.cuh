// Grouped GEMMs with few rows per group and quantized weights, bound by reading the weights of
// groups that have rows.
//
// As in grouped_gemv.cuh a warp works alone, on one item after the other: up to 8 kHalves rows
// of a group (GroupUnits) by kTiles tiles of 16 of its outputs, all inputs; a ring in shared memory
// continues from item to item. A stage of it is a block of 64 bytes of each output's weights with
// its scales, and the same inputs of x. Operands are mapped as in quantized_gemv.cuh: outputs are
// operand A, rows of x are B, and scales are applied to sums.
//
// Sums are accumulated in input order by one lane, so a row's do not depend on its group, on other
// rows or on kHalves.
#pragma once

#include "kernels/gemm/sm80/grouped_gemv.cuh"
#include "kernels/gemm/sm80/grouped_params.cuh"
#include "kernels/gemm/sm80/quantized_gemv.cuh"

namespace nvllm::kernels::cuda::quantized_groups {

inline constexpr int kWarps = 4, kBlocks = 2;             // blocks on a multiprocessor
inline constexpr int kMaxTiles = 2, kOutputsOfTile = 16;  // a lane for the scale of each output
static_assert(kMaxTiles * kOutputsOfTile == 32);
inline constexpr int kRingBytes = 24 << 10;  // of a warp

template <typename T>
struct Params : GroupedParams<T> {
  const char* values;
  const unsigned* scales;
  int row_bytes, row_scales;  // of an output: words of scales

  explicit Params(const GroupedGemm& grouped)
      : GroupedParams<T>(grouped),
        values(grouped.weight.values.as<const char>()),
        scales(grouped.weight.quantized.scales.as<const unsigned>()),
        row_bytes(static_cast<int>(grouped.weight.quantized_shape().row_bytes())),
        row_scales(static_cast<int>(
            grouped.weight.quantized_shape().scale_columns() *
            static_cast<std::int64_t>(size_of(grouped.weight.quantized_shape().scale_type())) /
            4)) {}
};

// A block of 64 bytes of a weight. kGroup: inputs with the same scale, which is one word each, but
// a byte for mxfp4.
template <WeightFormat kFormat, int kGroup>
struct Block {
  static constexpr int kInputs = kBlockInputs<kFormat>;
  static constexpr int kUnit = kGroup < kInputs ? kGroup : kInputs, kUnits = kInputs / kUnit;
  static constexpr bool kBytes = kFormat == WeightFormat::mxfp4;
  static constexpr int kScaleWords = kBytes ? kUnits / 4 : kUnits;

  // The first word with scales of block number `block` of an output.
  static __device__ __forceinline__ int first_word(int block) {
    return block * kInputs / (kBytes ? 4 * kGroup : kGroup);
  }
  // words: in shared memory.
  static __device__ __forceinline__ unsigned scale(const unsigned* words, int unit) {
    return kBytes ? words[unit / 4] >> unit % 4 * 8 & 255 : words[unit];
  }
};

template <typename OfBlock, int kTiles, int kHalves>
struct Ring {
  static constexpr int kInputs = OfBlock::kInputs;
  static constexpr int kRows = 8 * kHalves;
  static constexpr int kScalesAt = kTiles * 2 * 32 * 16;
  static constexpr int kXAt = kScalesAt + kTiles * kOutputsOfTile * OfBlock::kScaleWords * 4;
  static constexpr int kStageBytes = (kXAt + kRows * kSliceRowBytes<kInputs> + 127) / 128 * 128;
  static constexpr int kStages = kRingBytes / kStageBytes;

  static constexpr int shared_bytes(int groups) {
    return kWarps * kRingBytes + GroupUnits<kRows>::bytes(groups);
  }
};

// Like copy_chunk(), for 1, 2 or 4 words.
template <int kWords>
__device__ __forceinline__ void copy_words(unsigned to, const void* from, bool valid) {
  const int bytes = valid ? kWords * 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to), "l"(from), "r"(bytes),
               "n"(kWords * 4)
               : "memory");
}
// An item, as a lane copies it. kGated: a tile is 8 gate rows, then 8 up rows.
template <typename T, typename OfBlock, int kTiles, int kHalves, bool kGated>
class Item {
 public:
  using Here = Ring<OfBlock, kTiles, kHalves>;
  static constexpr int kInputs = OfBlock::kInputs;
  static constexpr int kTileColumns = kGated ? 8 : 16;  // of out
  static constexpr int kColumns = kTiles * kTileColumns;

  __device__ __forceinline__ void set(const Params<T>& p, const GroupUnits<Here::kRows>& units,
                                      int item, int tiles) {
    const GroupUnit unit = units.at(item / tiles);
    const int first_column = item % tiles * kColumns;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const long long output = output_of(p, unit, first_column, tile, half, lane / 4);
        values_[tile][half] =
            output < 0 ? nullptr : p.values + output * p.row_bytes + lane % 4 * 16;
      }
    }
    const bool has_scale = lane < kTiles * kOutputsOfTile;
    const long long scaled =
        has_scale ? output_of(p, unit, first_column, lane / 16, lane / 8 % 2, lane % 8) : -1;
    scales_ = scaled < 0 ? nullptr : p.scales + scaled * p.row_scales;
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int row = lane / kChunks + i * kRowsAtOnce;
      x_[i] = nullptr;
      if (row < unit.rows) {
        x_[i] = p.x + p.source_of(unit.first_row + row) * p.inputs + lane % kChunks * 8;
      }
    }
  }

  __device__ __forceinline__ void copy(const Params<T>& p, int stage, unsigned to) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const char* const from = values_[tile][half];
        few_rows::copy_weights(to + (tile * 2 + half) * 512 + lane * 16,
                               from == nullptr ? p.values : from + stage * kQuantizedBlockBytes,
                               from != nullptr);
      }
    }
    constexpr int kWords = OfBlock::kScaleWords;
    if (lane < kTiles * kOutputsOfTile) {
      copy_words<kWords>(to + Here::kScalesAt + lane * kWords * 4,
                         scales_ == nullptr ? p.scales : scales_ + OfBlock::first_word(stage),
                         scales_ != nullptr);
    }
    const bool inside = stage * kInputs + lane % kChunks * 8 < p.inputs;
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      if (x_[i] == nullptr) continue;
      const int row = lane / kChunks + i * kRowsAtOnce;
      few_rows::copy_chunk_cached(
          to + Here::kXAt + row * kSliceRowBytes<kInputs> + lane % kChunks * 16,
          inside ? x_[i] + stage * kInputs : p.x, inside);
    }
  }

 private:
  static constexpr int kChunks = kInputs / 8, kRowsAtOnce = 32 / kChunks;
  static constexpr int kOwnRows = Here::kRows / kRowsAtOnce;

  // Negative: no such output.
  static __device__ __forceinline__ long long output_of(const Params<T>& p, const GroupUnit& unit,
                                                        int first_column, int tile, int half,
                                                        int of_tile) {
    const int column = first_column + tile * kTileColumns + of_tile + (kGated ? 0 : half * 8);
    if (column >= p.columns) return -1;
    return static_cast<long long>(unit.group) * p.outputs + column +
           (kGated && half == 1 ? p.columns : 0);
  }

  const char* values_[kTiles][2];
  const unsigned* scales_;
  const T* x_[kOwnRows];
};

// A tile, in the form that PassSums takes.
template <typename OfBlock>
struct Loaded {
  unsigned words[2][4];
  unsigned scales[2][OfBlock::kUnits];

  // stage: in shared memory.
  __device__ __forceinline__ Loaded(const char* stage, int scales_at, int tile) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 four =
          *reinterpret_cast<const uint4*>(stage + (tile * 2 + half) * 512 + lane * 16);
      words[half][0] = four.x, words[half][1] = four.y;
      words[half][2] = four.z, words[half][3] = four.w;
      const int output = tile * kOutputsOfTile + half * 8 + lane / 4;
      const auto* const of_output =
          reinterpret_cast<const unsigned*>(stage + scales_at) + output * OfBlock::kScaleWords;
#pragma unroll
      for (int unit = 0; unit < OfBlock::kUnits; ++unit) {
        scales[half][unit] = OfBlock::scale(of_output, unit);
      }
    }
  }
};

template <typename T, bool kGated, typename Sums>
__device__ __forceinline__ void store(const Params<T>& p, const GroupUnit& unit, int first_column,
                                      const Sums& sums, float sum_unit) {
  constexpr int kHalves = sizeof(sums.d) / sizeof(sums.d[0]);
  const int lane = threadIdx.x % 32;
  const auto bias_of = [&](int output) {
    if (p.bias == nullptr) return 0.0f;
    return widen(p.bias[static_cast<long long>(unit.group) * p.outputs + output]);
  };
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
#pragma unroll
    for (int j = 0; j < (kGated ? 2 : 4); ++j) {
      const int row = half * 8 + lane % 4 * 2 + j % 2;
      const int column = first_column + j / 2 * 8 + lane / 4;
      if (row >= unit.rows || column >= p.columns) continue;
      float sum = sums.d[half][j] * sum_unit + bias_of(column);
      if constexpr (kGated) {
        sum = gated_sum<T>(sum, sums.d[half][j + 2] * sum_unit + bias_of(p.columns + column));
      }
      p.out[static_cast<long long>(unit.first_row + row) * p.columns + column] = narrow<T>(sum);
    }
  }
}

template <typename T, WeightFormat kFormat, int kGroup, int kTiles, int kHalves, bool kGated>
__global__ void __launch_bounds__(kWarps * 32, kBlocks)
    grouped_quantized_kernel(const Params<T> p) {
  using OfBlock = Block<kFormat, kGroup>;
  using Here = Ring<OfBlock, kTiles, kHalves>;
  using Work = Item<T, OfBlock, kTiles, kHalves, kGated>;
  constexpr int kStages = Here::kStages;
  extern __shared__ __align__(128) char shared[];
  pdl_begin();
  const int warp = threadIdx.x / 32;
  const GroupUnits<Here::kRows> units(shared + kWarps * kRingBytes, p.groups);
  units.find(p.start);

  const int tiles = (p.columns + Work::kColumns - 1) / Work::kColumns;
  const int items = units.count() * tiles;
  const int workers = static_cast<int>(gridDim.x) * kWarps;
  const int first = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  if (first >= items) return;
  const int stages = p.row_bytes / static_cast<int>(kQuantizedBlockBytes);
  const char* const ring = shared + warp * kRingBytes;
  const unsigned ring_address = address_of(ring);

  // The next item to copy.
  Work next;
  int next_item = first, next_stage = 0;
  next.set(p, units, first, tiles);
  const auto copy = [&](int slot) {
    if (next_item < items) {
      next.copy(p, next_stage, ring_address + slot * Here::kStageBytes);
      if (++next_stage == stages) {
        next_stage = 0;
        next_item += workers;
        if (next_item < items) next.set(p, units, next_item, tiles);
      }
    }
    commit_copies();
  };
#pragma unroll 1
  for (int stage = 0; stage < kStages - 1; ++stage) copy(stage);

  int slot = 0;
#pragma unroll 1
  for (int item = first; item < items; item += workers) {
    const GroupUnit unit = units.at(item / tiles);
    PassSums<T, kFormat, OfBlock::kUnit, kHalves> sums[kTiles];
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
      wait_for_copies<kStages - 2>();
      __syncwarp();  // all lanes' copies have arrived, and all have read the previous slot
      const char* const from = ring + slot * Here::kStageBytes;
      RowsFragments<kFormat, T, kHalves> x;
      x.load(address_of(from) + Here::kXAt, kSliceRowBytes<Here::kInputs>, unit.rows);
      x.arrange();
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        sums[tile].add(Loaded<OfBlock>(from, Here::kScalesAt, tile), x);
      }
      copy(slot == 0 ? kStages - 1 : slot - 1);
      slot = slot + 1 == kStages ? 0 : slot + 1;
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      store<T, kGated>(p, unit, item % tiles * Work::kColumns + tile * Work::kTileColumns,
                       sums[tile], kSumUnit<kFormat, T>);
    }
  }
}

}  // namespace nvllm::kernels::cuda::quantized_groups
