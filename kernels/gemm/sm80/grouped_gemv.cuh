// Grouped GEMMs with few rows per group, bound by reading the weights of groups that have rows.
//
// A warp works alone, on one item after the other: up to 16 rows of a group (GroupUnits) by kTiles
// tiles of 8 of its outputs, all inputs. Weights and x pass through a ring in shared memory that
// continues from item to item, so that memory is never idle; a lane copies exactly what it reads
// itself, so lanes do not wait for each other. Operands are mapped as in gemv.cuh: rows of x are
// operand A, outputs are B, and of each slice of 32 inputs a lane has 8 of one output and of two
// rows.
//
// Rows that a unit lacks are not copied; the ring then holds other data, and the resulting sums are
// not used. Existing rows go through the L1, where the other warps find them: warps that all read
// the same few rows from the L2 would wait for each other there.
//
// Sums are accumulated in input order by one lane, so a row's do not depend on its group, on other
// rows or on kTiles.
#pragma once

#include "kernels/gemm/sm80/gemv.cuh"
#include "kernels/gemm/sm80/grouped_params.cuh"

namespace nvllm::kernels::cuda::few_rows {

inline constexpr int kRows = 16, kWarps = 4, kBlocks = 2;  // blocks on a multiprocessor
inline constexpr int kStageSlices = 2;                     // of a stage of the ring
inline constexpr int kRingBytes = 24 << 10;                // of a warp

template <int kTiles>
struct Ring {
  static constexpr int kSliceBytes = (kTiles + 2) * 32 * 16;
  static constexpr int kStageBytes = kStageSlices * kSliceBytes;
  static constexpr int kStages = kRingBytes / kStageBytes;
};

inline constexpr int shared_bytes(int groups) {
  return kWarps * kRingBytes + GroupUnits<kRows>::bytes(groups);
}

// Like copy_chunk(), for a weight: also prefetches up to 256 bytes of its row into the L2.
__device__ __forceinline__ void copy_weights(unsigned to, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(bytes)
               : "memory");
}
// Like copy_chunk(), through the L1.
__device__ __forceinline__ void copy_chunk_cached(unsigned to, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

// An item, as a lane reads it.
template <typename T>
struct Item {
  const T* weight;  // of its output in the first tile
  const T* x[2];    // its rows; nullptr: the unit has fewer
  GroupUnit unit;
  int first_column;  // of out

  // kOwn: columns of out per item.
  template <int kOwn>
  __device__ __forceinline__ void set(const GroupedParams<T>& p, const GroupUnits<kRows>& units,
                                      int item, int tiles) {
    const int lane = threadIdx.x % 32;
    unit = units.at(item / tiles);
    first_column = item % tiles * kOwn;
    const long long output =
        static_cast<long long>(unit.group) * p.outputs + first_column + lane / 4;
    weight = p.weight + output * p.inputs + lane % 4 * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = half * 8 + lane / 4;
      x[half] = nullptr;
      if (row < unit.rows) {
        x[half] = p.x + p.source_of(unit.first_row + row) * p.inputs + lane % 4 * 8;
      }
    }
  }
};

// kGated: the first half of an item's tiles are gate rows, the others up rows.
template <typename T, int kTiles, bool kGated>
__global__ void __launch_bounds__(kWarps * 32, kBlocks)
    grouped_few_rows_kernel(const GroupedParams<T> p) {
  using Here = Ring<kTiles>;
  constexpr int kStages = Here::kStages;
  constexpr int kOwn = (kGated ? kTiles / 2 : kTiles) * kTileOutputs;
  extern __shared__ __align__(128) char shared[];
  pdl_begin();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const GroupUnits<kRows> units(shared + kWarps * kRingBytes, p.groups);
  units.find(p.start);

  const int tiles = (p.columns + kOwn - 1) / kOwn, items = units.count() * tiles;
  const int workers = static_cast<int>(gridDim.x) * kWarps;
  const int first = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  if (first >= items) return;
  const int stages = (p.inputs + kStageSlices * kSliceInputs - 1) / (kStageSlices * kSliceInputs);
  const auto ring =
      static_cast<unsigned>(__cvta_generic_to_shared(shared)) + warp * kRingBytes + lane * 16;
  const char* const ring_here = shared + warp * kRingBytes + lane * 16;

  // The next item to copy.
  Item<T> next;
  int next_item = first, next_stage = 0;
  next.template set<kOwn>(p, units, first, tiles);
  const auto copy = [&](int slot) {
    if (next_item < items) {
#pragma unroll
      for (int slice = 0; slice < kStageSlices; ++slice) {
        const unsigned to = ring + slot * Here::kStageBytes + slice * Here::kSliceBytes;
        const int input = (next_stage * kStageSlices + slice) * kSliceInputs;
        const bool inside = input + lane % 4 * 8 < p.inputs;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const bool through = kGated && tile >= kTiles / 2;
          const int column = (through ? tile - kTiles / 2 : tile) * kTileOutputs;
          const bool there = next.first_column + column < p.columns;
          const T* const from =
              next.weight + static_cast<long long>(column + (through ? p.columns : 0)) * p.inputs +
              input;
          copy_weights(to + tile * 512, inside && there ? from : p.weight, inside && there);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (next.x[half] == nullptr) continue;
          copy_chunk_cached(to + (kTiles + half) * 512, inside ? next.x[half] + input : p.x,
                            inside);
        }
      }
      if (++next_stage == stages) {
        next_stage = 0;
        next_item += workers;
        if (next_item < items) next.template set<kOwn>(p, units, next_item, tiles);
      }
    }
    commit_copies();
  };
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) copy(stage);

  int slot = 0;
  for (int item = first; item < items; item += workers) {
    const GroupUnit unit = units.at(item / tiles);
    const int first_column = item % tiles * kOwn;
    const bool many = unit.rows > 8;
    float d[kTiles][4] = {};
    for (int stage = 0; stage < stages; ++stage) {
      wait_for_copies<kStages - 2>();
      const char* const from = ring_here + slot * Here::kStageBytes;
#pragma unroll
      for (int slice = 0; slice < kStageSlices; ++slice) {
        const auto* const vectors =
            reinterpret_cast<const Vector<T>*>(from + slice * Here::kSliceBytes);
        const Vector<T> a = vectors[kTiles * 32];
        Vector<T> a8{};
        if (many) a8 = vectors[(kTiles + 1) * 32];
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const Vector<T> b = vectors[tile * 32];
          multiply_add<T>(d[tile], a.word[0], a8.word[0], a.word[1], a8.word[1], b.word[0],
                          b.word[1]);
          multiply_add<T>(d[tile], a.word[2], a8.word[2], a.word[3], a8.word[3], b.word[2],
                          b.word[3]);
        }
      }
      copy(slot == 0 ? kStages - 1 : slot - 1);
      slot = slot + 1 == kStages ? 0 : slot + 1;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = half * 8 + lane / 4;
      if (row >= unit.rows) continue;
      T* const out = p.out + static_cast<long long>(unit.first_row + row) * p.columns +
                     first_column + lane % 4 * 2;
#pragma unroll
      for (int tile = 0; tile < kOwn / kTileOutputs; ++tile) {
        if (first_column + tile * kTileOutputs >= p.columns) continue;
        const int column = first_column + tile * kTileOutputs + lane % 4 * 2;
        float low = d[tile][2 * half], high = d[tile][2 * half + 1];
        p.add_bias(unit.group, column, low, high);
        if constexpr (kGated) {
          float low_up = d[tile + kTiles / 2][2 * half];
          float high_up = d[tile + kTiles / 2][2 * half + 1];
          p.add_bias(unit.group, p.columns + column, low_up, high_up);
          low = gated_sum<T>(low, low_up), high = gated_sum<T>(high, high_up);
        }
        *reinterpret_cast<unsigned*>(out + tile * kTileOutputs) = narrow_pair<T>(low, high);
      }
    }
  }
}

}  // namespace nvllm::kernels::cuda::few_rows
