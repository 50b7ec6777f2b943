// Grouped GEMMs with many rows per group on Hopper: tiles of 128 rows by 256 outputs.
//
// A block is persistent and processes one item after the other: up to 128 rows of a group
// (GroupUnits) by a tile of its outputs, all inputs. Stages of 64 inputs of x and of the weights
// pass through a ring in shared memory, which continues from item to item, so that the next
// operands are in flight during an item's epilogue. Two warpgroups multiply 64 rows each. One
// thread copies boxes of the weights, and of x if its rows are in order; otherwise two warps gather
// them, 16 bytes at a time. Boxes may extend beyond a group's rows and outputs, and missing rows
// are not gathered; the resulting sums are not used.
#pragma once

#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm90/tma.cuh"
#include "kernels/gemm/sm80/grouped_params.cuh"
#include "kernels/gemm/sm90/weight_stages.cuh"

namespace nvllm::kernels::cuda::grouped {

using staged::kAlignment, staged::kRowBytes, staged::kStageInputs;

inline constexpr int kRows = 128, kOutputs = 256, kBoxOutputs = 128;
inline constexpr int kConsumers = 256;  // threads; then come those that copy
inline constexpr int producers(bool gathers) {
  return gathers ? 64 : 32;
}
inline constexpr int kStages = 4;
inline constexpr int kXBytes = kRows * kRowBytes, kBoxBytes = kBoxOutputs * kRowBytes;
inline constexpr int kStageBytes = kXBytes + 2 * kBoxBytes;
inline constexpr int kBarriers = kStages * kStageBytes, kUnits = kBarriers + kStages * 16;

inline constexpr int shared_bytes(int groups) {
  return kAlignment + kUnits + GroupUnits<kRows>::bytes(groups);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Transposes 4 x 4 words among four adjacent lanes: from a row to a column per lane.
__device__ __forceinline__ void transpose_over_four(unsigned (&words)[4]) {
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool upper = (threadIdx.x & distance) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & distance) != 0) continue;
      unsigned &low = words[i], &high = words[i + distance];
      const unsigned other = __shfl_xor_sync(~0u, upper ? low : high, distance);
      (upper ? low : high) = other;
    }
  }
}

// Stores a warpgroup's 64 rows.
template <bool kGated, typename T>
__device__ __forceinline__ void store(const GroupedParams<T>& p, const GroupUnit& unit,
                                      int first_column, const float (&sums)[kOutputs / 2]) {
  constexpr int kQuads = (kGated ? kOutputs / 2 : kOutputs) / 32;  // 32 columns each
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = threadIdx.x / 32 * 16 + half * 8 + lane / 4;
    T* const out = p.out + static_cast<long long>(unit.first_row + row) * p.columns;
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      unsigned words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = (quad * 4 + i) * 4 + half * 2;
        float low = sums[at], high = sums[at + 1];
        // A group's outputs are whole vectors of 8, so the adjacent ones exist, too.
        const int output = first_column + quad * 32 + i * 8 + lane % 4 * 2;
        const bool there = output < p.columns;
        if (there) p.add_bias(unit.group, output, low, high);
        if constexpr (kGated) {
          float low_up = sums[at + kOutputs / 4], high_up = sums[at + kOutputs / 4 + 1];
          if (there) p.add_bias(unit.group, p.columns + output, low_up, high_up);
          low = gated_sum<T>(low, low_up), high = gated_sum<T>(high, high_up);
        }
        words[i] = narrow_pair<T>(low, high);
      }
      transpose_over_four(words);
      const int column = first_column + quad * 32 + lane % 4 * 8;
      if (row < unit.rows && column < p.columns) {
        *reinterpret_cast<uint4*>(out + column) =
            make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }
}

// Rows of x that two warps gather for an item: a lane has 16 bytes of every fourth of 64 rows.
template <typename T>
class GatheredRows {
 public:
  // thread: index among the copying threads.
  __device__ __forceinline__ GatheredRows(const GroupedParams<T>& p, int thread)
      : p_(p),
        row_(thread / 32 * 64 + thread % 32 / 8),
        chunk_(thread % 8),
        to_(row_ * kRowBytes + (chunk_ ^ row_ % 4) * 16) {}

  __device__ __forceinline__ void set(const GroupUnit& unit) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int row = row_ + 4 * i;
      sources_[i] = row < unit.rows ? static_cast<int>(p_.source_of(unit.first_row + row)) : kNoRow;
    }
  }

  // With the 128-byte swizzle, like boxes.
  __device__ __forceinline__ void copy(unsigned stage, int input) const {
    const int from = input + chunk_ * 8;
    const bool inside = from < p_.inputs;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (sources_[i] == kNoRow) continue;
      const T* const x = p_.x + static_cast<long long>(sources_[i]) * p_.inputs + from;
      copy_chunk(stage + ((to_ ^ i % 2 * 64) + i * 4 * kRowBytes), inside ? x : p_.x, inside);
    }
  }

 private:
  static constexpr int kOwn = 16, kNoRow = -1;

  const GroupedParams<T>& p_;
  int row_, chunk_;
  unsigned to_;
  int sources_[kOwn];
};

#endif

// grid: resident blocks. `weight` [1, groups * outputs, inputs], `x` [1, rows, inputs] in boxes of
// 64 inputs and 128 outputs or rows. kGated: a tile has gate rows and as many up rows. kGathers:
// p.source_rows selects the rows of x.
template <typename T, bool kGated, bool kGathers>
__global__ void __launch_bounds__(kConsumers + producers(kGathers), 1)
    grouped_wgmma_kernel(const __grid_constant__ CUtensorMap weight,
                         const __grid_constant__ CUtensorMap x, const GroupedParams<T> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kOwn = kGated ? kOutputs / 2 : kOutputs;  // columns of out
  extern __shared__ char memory_of_block[];
  const auto unaligned = static_cast<unsigned>(__cvta_generic_to_shared(memory_of_block));
  const unsigned base = (unaligned + kAlignment - 1) & ~(kAlignment - 1);
  const auto full = [&](int stage) { return Barrier{base + kBarriers + stage * 8}; };
  const auto empty = [&](int stage) { return Barrier{base + kBarriers + (kStages + stage) * 8}; };
  const GroupUnits<kRows> units(memory_of_block + (base - unaligned) + kUnits, p.groups);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == kConsumers) {
    prefetch(weight);
    prefetch(x);
    for (int stage = 0; stage < kStages; ++stage) {
      full(stage).init(kGathers ? 1 + producers(true) : 1);
      empty(stage).init(kConsumers / 32);
    }
    fence_barrier_init();
  }
  wait_on_dependent_grids();
  units.find(p.start);
  const int per_unit = (p.columns + kOwn - 1) / kOwn, items = units.count() * per_unit;
  const int steps = (p.inputs + kStageInputs - 1) / kStageInputs;
  int stage = 0;
  unsigned parity = 0;
  const auto advance = [&] {
    if (++stage == kStages) stage = 0, parity ^= 1;
  };

  if (threadIdx.x >= kConsumers) {
    const bool copies_boxes = threadIdx.x == kConsumers;
    if (!kGathers && !copies_boxes) return;
    GatheredRows<T> rows(p, threadIdx.x - kConsumers);
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
      const GroupUnit unit = units.at(item / per_unit);
      const int output = unit.group * p.outputs + item % per_unit * kOwn;
      const int second = kGated ? p.columns : kBoxOutputs;
      if constexpr (kGathers) rows.set(unit);
      for (int step = 0; step < steps; ++step, advance()) {
        const unsigned to = base + stage * kStageBytes;
        const int input = step * kStageInputs;
        empty(stage).wait(parity ^ 1);
        if (copies_boxes) {
          full(stage).arrive_and_expect(kGathers ? 2 * kBoxBytes : kStageBytes);
          copy_box(to + kXBytes, weight, input, output, 0, full(stage));
          copy_box(to + kXBytes + kBoxBytes, weight, input, output + second, 0, full(stage));
          if constexpr (!kGathers) copy_box(to, x, input, unit.first_row, 0, full(stage));
        }
        if constexpr (kGathers) {
          __syncwarp();
          rows.copy(to, input);
          full(stage).arrive_after_copies();
        }
      }
    }
    launch_dependent_grids();
    return;
  }

  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    float sums[kOutputs / 2];
    int previous = 0;
    for (int step = 0; step < steps; ++step, advance()) {
      full(stage).wait(parity);
      if constexpr (kGathers) fence_shared_writes();
      const unsigned at = base + stage * kStageBytes;
      const auto a = wgmma_descriptor(at + warp / 4 * 64 * kRowBytes, 16, 1024);
      const auto b = wgmma_descriptor(at + kXBytes, 16, 1024);
      staged::multiply<T>(sums, a, b, step);
      wgmma_wait<1>();
      if (step > 0 && lane == 0) empty(previous).arrive();
      previous = stage;
    }
    wgmma_wait<0>();
    hold(sums);
    if (lane == 0) empty(previous).arrive();
    store<kGated>(p, units.at(item / per_unit), item % per_unit * kOwn, sums);
  }
#endif
}

}  // namespace nvllm::kernels::cuda::grouped
