// Grouped GEMMs of fp8 weights by fp8 rows on Hopper: tiles of 128 rows by 256 outputs.
//
// As in grouped_wgmma.cuh, a persistent block processes one item after the other, and stages of
// inputs pass through a ring in shared memory; here a stage is a group of 128 inputs. Two
// warpgroups multiply 64 rows each. Tensor cores accumulate a group of inputs with about 14 bits,
// so that sum, of 128 outputs at a time, is scaled and accumulated in float32; while one warpgroup
// does this, the other uses the tensor cores. The scale of a row and a group arrives with x; a
// weight scale covers 128 outputs: half a tile.
//
// The order of items lets concurrent blocks share rows and weights: the output tiles of a group in
// sequence, each for a band of its rows.
//
// A gated activation's results may be requantized to fp8 rows for the next GEMM: a tile has one
// group of 128 of its columns, and a thread holds exactly its 16 bytes of a block of 64.
#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/gemm/cuda/grouped_gemm.h"
#include "kernels/gemm/sm90/grouped_wgmma.cuh"

namespace nvllm::kernels::cuda {
namespace fp8_groups {
namespace {

using grouped::kAlignment, grouped::kBoxOutputs, grouped::kConsumers, grouped::kOutputs,
    grouped::kRows;

constexpr int kProducers = 128;  // threads
constexpr int kStageInputs = static_cast<int>(kFp8Group), kRowBytes = kStageInputs;
constexpr int kStages = 4;
constexpr int kXBytes = kRows * kRowBytes, kBoxBytes = kBoxOutputs * kRowBytes;
constexpr int kStageBytes = kXBytes + 2 * kBoxBytes;
constexpr int kBarriers = kStages * kStageBytes, kUnits = kBarriers + kStages * 16;
// Registers per thread, where all start with 168. Gathering threads need more.
[[maybe_unused]] constexpr int consumer_registers(bool gathers) {
  return gathers ? 224 : 232;
}
[[maybe_unused]] constexpr int producer_registers(bool gathers) {
  return gathers ? 56 : 40;
}

constexpr int shared_bytes(int groups) {
  return kAlignment + kUnits + GroupUnits<kRows>::bytes(groups);
}

template <typename T>
struct Params {
  GroupedParams<T> grouped;
  Fp8Rows x;
  // Rows of out to compute; unless x is gathered, its first row is first_row.
  int first_row, end_row;
  const float* weight_scales;  // [groups * outputs, scale_columns]
  int scale_columns;
  Fp8Rows out;  // values == nullptr: results go to grouped.out
};

[[maybe_unused]] constexpr int kBandUnits = 16;  // of rows

// The current work of a block.
struct Work {
  GroupUnit unit;
  int first_column;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// per_unit: tiles of columns.
__device__ __forceinline__ Work work_of(const GroupUnits<kRows>& units, int item, int per_unit,
                                        int columns_of_tile) {
  const int group = units.at(item / per_unit).group;
  const int before = units.units[group], of_group = units.units[group + 1] - before;
  const int in_group = item - before * per_unit;
  const int band = in_group / (kBandUnits * per_unit) * kBandUnits;
  const int in_band = in_group - band * per_unit, of_band = min(kBandUnits, of_group - band);
  const int first_row = units.rows[group] + (band + in_band % of_band) * kRows;
  return {{group, first_row, min(kRows, units.rows[group + 1] - first_row)},
          in_band / of_band * columns_of_tile};
}

// Rows of x that a warpgroup gathers for an item: a thread has 16 bytes of every 16th of 128 rows.
template <typename T>
class GatheredRows {
 public:
  __device__ __forceinline__ GatheredRows(const Params<T>& p, int thread)
      : p_(p), row_(thread / 8), chunk_(thread % 8) {}

  __device__ __forceinline__ void set(const GroupUnit& unit) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int row = row_ + 16 * i;
      sources_[i] =
          row < unit.rows ? static_cast<int>(p_.grouped.source_of(unit.first_row + row)) : kNoRow;
    }
  }

  // With the 128-byte swizzle, like boxes.
  __device__ __forceinline__ void copy(unsigned stage, int input) const {
    const std::byte* const x = p_.x.values + input + chunk_ * 16;
    const unsigned to = stage + row_ * kRowBytes + (chunk_ ^ row_ % 8) * 16;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (sources_[i] == kNoRow) continue;
      const long long row = static_cast<long long>(sources_[i]) * p_.grouped.inputs;
      copy_chunk(to + 16 * i * kRowBytes, x + row, true);
    }
  }

 private:
  static constexpr int kOwn = kRows / 16, kNoRow = -1;

  const Params<T>& p_;
  int row_, chunk_;
  int sources_[kOwn];
};

// The scales of an item that a consumer thread needs: of its two rows, and of both halves of the
// outputs. They are loaded one step ahead.
template <typename T, bool kGated>
class Scales {
 public:
  float rows[2], outputs[2];

  __device__ __forceinline__ Scales(const Params<T>& p, const GroupUnit& unit, int first_column)
      : p_(p) {
    const bool gathers = p.grouped.source_rows != nullptr;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = min(threadIdx.x / 32 * 16 + half * 8 + threadIdx.x % 32 / 4, unit.rows - 1);
      const int in_order = unit.first_row + row;
      at_row_[half] = gathers ? p.grouped.source_rows[in_order] : in_order - p.first_row;
      const int output = min(first_column + half * (kGated ? p.grouped.columns : kBoxOutputs),
                             p.grouped.outputs - 1);
      at_output_[half] = (unit.group * p.grouped.outputs + output) * p.scale_columns;
    }
    read();
  }

  __device__ __forceinline__ void read() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      rows[half] = p_.x.scales[at_row_[half]];
      outputs[half] = __ldg(p_.weight_scales + at_output_[half]);
    }
  }
  __device__ __forceinline__ void next() {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      at_row_[half] += static_cast<int>(p_.x.scale_stride), ++at_output_[half];
    read();
  }

 private:
  const Params<T>& p_;
  int at_row_[2], at_output_[2];
};

// Multiplies a stage of a warpgroup's rows by 128 outputs.
__device__ __forceinline__ void multiply(float (&part)[64], std::uint64_t a, std::uint64_t b) {
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kStageInputs / 32; ++k)
    wgmma_e4m3(part, advance_descriptor(a, k * 32), advance_descriptor(b, k * 32), k > 0);
  wgmma_commit();
}

template <int kFirst>
__device__ __forceinline__ void add(float (&sums)[kOutputs / 2], const float (&part)[64],
                                    const float (&rows)[2], float output) {
  const float low = rows[0] * output, high = rows[1] * output;
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    float& sum = sums[kFirst + i];
    sum = fmaf(part[i], i % 4 < 2 ? low : high, sum);
  }
}

// Quantizes a group of 128 results of a gated activation in a row, rounded to T first, with the
// bytes of quantize_rows().
template <typename T>
__device__ __forceinline__ void store_fp8(const Params<T>& p, const GroupUnit& unit,
                                          int first_column, float (&sums)[kOutputs / 2]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = threadIdx.x / 32 * 16 + half * 8 + lane / 4;
    float largest = 0;
#pragma unroll
    for (int quad = 0; quad < 16; ++quad) {
      const int column = first_column + quad * 8 + lane % 4 * 2, at = quad * 4 + half * 2;
      float &low = sums[at], &high = sums[at + 1];
      float low_up = sums[at + 64], high_up = sums[at + 65];
      p.grouped.add_bias(unit.group, column, low, high);
      p.grouped.add_bias(unit.group, p.grouped.columns + column, low_up, high_up);
      low = widen(narrow<T>(gated_sum<T>(low, low_up)));
      high = widen(narrow<T>(gated_sum<T>(high, high_up)));
      largest = fmaxf(largest, fmaxf(fabsf(low), fabsf(high)));
    }
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    if (row >= unit.rows) continue;
    const long long to = unit.first_row + row;
    const float inverse = largest > 0 ? kMaxFp8 / largest : 0.0f;
    const auto pair_of = [&](int quad) {
      const int at = quad * 4 + half * 2;
      const float2 both = make_float2(sums[at] * inverse, sums[at + 1] * inverse);
      return static_cast<unsigned>(__nv_cvt_float2_to_fp8x2(both, __NV_SATFINITE, __NV_E4M3));
    };
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      unsigned words[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int quad = block * 8 + k * 2;
        words[k] = pair_of(quad) | pair_of(quad + 1) << 16;
      }
      std::byte* const at =
          p.out.values + to * p.grouped.columns + first_column + block * 64 + lane % 4 * 16;
      *reinterpret_cast<uint4*>(at) = make_uint4(words[0], words[1], words[2], words[3]);
    }
    if (lane % 4 == 0)
      p.out.scales[first_column / kStageInputs * p.out.scale_stride + to] = largest / kMaxFp8;
  }
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

#endif

// grid: resident blocks. `weight` [1, groups * outputs, inputs / 2], `x` likewise [1, rows, inputs
// / 2], of pairs of bytes, in boxes of 128 bytes and 128 outputs or rows. kGated and kGathers are
// as in grouped_wgmma_kernel.
template <typename T, bool kGated, bool kGathers>
__global__ void __launch_bounds__(kConsumers + kProducers, 1)
    grouped_fp8_kernel(const __grid_constant__ CUtensorMap weight,
                       const __grid_constant__ CUtensorMap x, const Params<T> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kOwn = kGated ? kOutputs / 2 : kOutputs;  // columns of out
  extern __shared__ char memory_of_block[];
  const auto unaligned = static_cast<unsigned>(__cvta_generic_to_shared(memory_of_block));
  const unsigned base = (unaligned + kAlignment - 1) & ~(kAlignment - 1);
  const auto full = [&](int stage) { return Barrier{base + kBarriers + stage * 8}; };
  const auto empty = [&](int stage) { return Barrier{base + kBarriers + (kStages + stage) * 8}; };
  const GroupUnits<kRows> units(memory_of_block + (base - unaligned) + kUnits, p.grouped.groups);

  const int lane = threadIdx.x % 32;
  if (threadIdx.x == kConsumers) {
    prefetch(weight);
    prefetch(x);
    for (int stage = 0; stage < kStages; ++stage) {
      full(stage).init(kGathers ? 1 + kProducers : 1);
      empty(stage).init(kConsumers / 32);
    }
    fence_barrier_init();
  }
  wait_on_dependent_grids();
  units.find(p.grouped.start, [&](int row) { return min(max(row, p.first_row), p.end_row); });
  const int per_unit = (p.grouped.columns + kOwn - 1) / kOwn, items = units.count() * per_unit;
  const int steps = p.grouped.inputs / kStageInputs;
  int stage = 0;
  unsigned parity = 0;
  const auto advance = [&] {
    if (++stage == kStages) stage = 0, parity ^= 1;
  };

  if (threadIdx.x >= kConsumers) {
    leave_registers<producer_registers(kGathers)>();
    const bool copies_boxes = threadIdx.x == kConsumers;
    if (!kGathers && !copies_boxes) return;
    GatheredRows<T> rows(p, threadIdx.x - kConsumers);
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
      const auto [unit, first_column] = work_of(units, item, per_unit, kOwn);
      const int output = unit.group * p.grouped.outputs + first_column;
      const int second = kGated ? p.grouped.columns : kBoxOutputs;
      if constexpr (kGathers) rows.set(unit);
      for (int step = 0; step < steps; ++step, advance()) {
        const unsigned to = base + stage * kStageBytes;
        const int input = step * kStageInputs, pair = input / 2;
        empty(stage).wait(parity ^ 1);
        if (copies_boxes) {
          full(stage).arrive_and_expect(kGathers ? 2 * kBoxBytes : kStageBytes);
          copy_box(to + kXBytes, weight, pair, output, 0, full(stage));
          copy_box(to + kXBytes + kBoxBytes, weight, pair, output + second, 0, full(stage));
          if constexpr (!kGathers)
            copy_box(to, x, pair, unit.first_row - p.first_row, 0, full(stage));
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

  take_registers<consumer_registers(kGathers)>();
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    const auto [unit, first_column] = work_of(units, item, per_unit, kOwn);
    Scales<T, kGated> scales(p, unit, first_column);
    float sums[kOutputs / 2] = {};
    for (int step = 0; step < steps; ++step, advance()) {
      full(stage).wait(parity);
      if constexpr (kGathers) fence_shared_writes();
      const unsigned at = base + stage * kStageBytes;
      const auto a = wgmma_descriptor(at + threadIdx.x / 128 * 64 * kRowBytes, 16, 1024);
      const auto b = wgmma_descriptor(at + kXBytes, 16, 1024);
      float part[64];
      multiply(part, a, b);
      wgmma_wait<0>();
      hold(part);
      add<0>(sums, part, scales.rows, scales.outputs[0]);
      multiply(part, a, advance_descriptor(b, kBoxBytes));
      wgmma_wait<0>();
      hold(part);
      if (lane == 0) empty(stage).arrive();
      add<64>(sums, part, scales.rows, scales.outputs[1]);
      if (step + 1 < steps) scales.next();
    }
    if constexpr (kGated) {
      if (p.out.values != nullptr) {
        store_fp8(p, unit, first_column, sums);
        continue;
      }
    }
    grouped::store<kGated>(p.grouped, unit, first_column, sums);
  }
#endif
}

template <typename T, bool kGated, bool kGathers>
void launch(const GroupedGemm& grouped, const Fp8Rows& x, std::int64_t first, std::int64_t count,
            const Fp8Rows& out, cudaStream_t stream) {
  const std::int64_t rows = kGathers ? grouped.x.shape[0] : count;
  const std::int64_t pairs = grouped.weight.inputs() / 2;
  const Params<T> p{GroupedParams<T>(grouped),
                    x,
                    static_cast<int>(first),
                    static_cast<int>(first + count),
                    grouped.weight.quantized.scales.as<const float>(),
                    static_cast<int>(grouped.weight.quantized.scales.shape[1]),
                    out};
  const auto pairs_of = [&](const void* values, std::int64_t of_rows) {
    return TensorView(const_cast<void*>(values), DType::bf16, {of_rows, pairs});
  };
  launch_grouped(
      grouped_fp8_kernel<T, kGated, kGathers>, 1, kConsumers + kProducers,
      shared_bytes(p.grouped.groups), stream,
      describe_rows("gemm", pairs_of(grouped.weight.values.data, grouped.weight.outputs()),
                    kBoxOutputs),
      describe_rows("gemm", pairs_of(x.values, rows), kRows), p);
}

template <typename T, bool kGated>
void launch(const GroupedGemm& grouped, const Fp8Rows& x, std::int64_t first, std::int64_t count,
            const Fp8Rows& out, cudaStream_t stream) {
  grouped.source_rows.data == nullptr
      ? launch<T, kGated, false>(grouped, x, first, count, out, stream)
      : launch<T, kGated, true>(grouped, x, first, count, out, stream);
}

template <typename T>
void launch(const GroupedGemm& grouped, const Fp8Rows& x, std::int64_t first, std::int64_t count,
            const Fp8Rows& out, cudaStream_t stream) {
  grouped.epilogue == Epilogue::none ? launch<T, false>(grouped, x, first, count, out, stream)
                                     : launch<T, true>(grouped, x, first, count, out, stream);
}

}  // namespace
}  // namespace fp8_groups

void grouped_fp8(const GroupedGemm& grouped, const Fp8Rows& x, std::int64_t first,
                 std::int64_t count, const Fp8Rows& out, Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  grouped.weight.type() == DType::bf16
      ? fp8_groups::launch<Bf16>(grouped, x, first, count, out, native)
      : fp8_groups::launch<F16>(grouped, x, first, count, out, native);
}

}  // namespace nvllm::kernels::cuda
