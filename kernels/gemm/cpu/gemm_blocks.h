// Many rows: blocks of outputs times panels of rows, for quantized weights and for AMX tiles.
// Blocks of other weights are in gemm_lane_blocks.h. Include after the Lanes of an instruction set
// and gemm_dot.h.
//
// x and weights are packed in dwords, one per step of the inputs: a float, or a pair of bfloat16. A
// panel of x, kCount rows, is [step][row]. Sums are [output][row], and are transposed at the end.
//
// A format provides Element, kPerStep (inputs per dword), load(from) (kCount dwords),
// load_part(from, count) (the same with fewer inputs, zero-padded), multiply_add(weight, x, sum).
#pragma once

#include "kernels/gemm/cpu/gemm_dot.h"

namespace nvllm::kernels::cpu {
namespace {

template <typename T>
struct BlocksOfFloats {
  using Element = T;
  static constexpr int kPerStep = 1;
  static Lanes::Floats load(const T* from) { return Lanes::load(from); }
  static Lanes::Floats load_part(const T* from, std::int64_t count) {
    return Lanes::load_part(from, count);
  }
  static Lanes::Floats multiply_add(Lanes::Floats weight, Lanes::Floats x, Lanes::Floats sum) {
    return Lanes::multiply_add(weight, x, sum);
  }
};

inline std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// A vector of dwords with up to `inputs` inputs, zero-padded.
template <typename Format>
inline Lanes::Floats load_dwords(const typename Format::Element* from, std::int64_t inputs) {
  constexpr std::int64_t kInputs = Lanes::kCount * Format::kPerStep;
  return inputs >= kInputs ? Format::load(from) : Format::load_part(from, inputs);
}

// Rows of x, kCount at most, as columns: to[step * kCount + row], for a multiple of kStepUnit
// steps. Rows from row_count on, and missing inputs, are zeros.
template <typename Format, int kStepUnit>
inline void pack_columns(const typename Format::Element* from, std::int64_t from_stride,
                         std::int64_t row_count, std::int64_t inputs, float* to) {
  constexpr std::int64_t kInputs = Lanes::kCount * Format::kPerStep;
  for (int step = 0; step < Lanes::kCount; ++step) fetch_to_write(to + step * Lanes::kCount);
  for (std::int64_t i = 0; i < inputs; i += kInputs) {
    for (int step = 0; step < Lanes::kCount; ++step) {
      fetch_to_write(to + (Lanes::kCount + step) * Lanes::kCount);
    }
    Lanes::Floats values[Lanes::kCount];
    for (int row = 0; row < Lanes::kCount; ++row) {
      values[row] = row < row_count ? load_dwords<Format>(from + row * from_stride + i, inputs - i)
                                    : Lanes::zero();
    }
    Lanes::transpose(values);
    const std::int64_t steps =
        divide_up(smaller(inputs - i, kInputs), Format::kPerStep * kStepUnit) * kStepUnit;
    for (std::int64_t step = 0; step < steps; ++step, to += Lanes::kCount) {
      Lanes::store(to, values[step]);
    }
  }
}

// Rows of weights as rows of dwords, followed by rows of zeros up to a multiple of kGroup; rows
// consist of whole vectors, zero-padded.
template <typename Format, int kGroup, int kStride>
inline void pack_rows(const typename Format::Element* weight, std::int64_t weight_stride,
                      std::int64_t outputs, std::int64_t inputs, float* packed) {
  constexpr std::int64_t kInputs = Lanes::kCount * Format::kPerStep;
  const std::int64_t rows = divide_up(outputs, kGroup) * kGroup;
  for (std::int64_t o = 0; o < rows; ++o, weight += weight_stride, packed += kStride) {
    for (std::int64_t i = 0; i < inputs; i += kInputs) {
      Lanes::store(packed + i / Format::kPerStep,
                   o < outputs ? load_dwords<Format>(weight + i, inputs - i) : Lanes::zero());
    }
  }
}

// The location of the weights of a block for one range of inputs. Strides are in bytes.
struct Weights {
  const void* data;
  std::int64_t stride;
  const void* next;  // the weights that follow, if read in place; nullptr: none
  std::int64_t next_stride;
  // Rows of each group of the next weights that may be prefetched meanwhile.
  int fetch_begin, fetch_end;
};

// The unit of multiplication: the sums of a group of outputs and some panels fit the registers,
// lanes are rows of x, and weights are broadcast to all lanes.
struct RegisterTile {
  static constexpr int kVectors = 3;  // panels
  static constexpr int kRows = kVectors * Lanes::kCount;
  static constexpr int kGroup = Lanes::kCount / 2;  // outputs
  static constexpr int kOutputs = 64;               // in a block
  static constexpr int kUnitRows = Lanes::kCount, kUnitOutputs = Lanes::kCount;
  static constexpr int kRowCost = 32, kOutputCost = 16;
  static_assert(kVectors * kGroup <= Lanes::kAccumulators && kOutputs % Lanes::kCount == 0);

  // Adds some steps. The outputs' weights have a stride of `stride` floats, panels of x_stride.
  template <typename Format, int kV>
  [[gnu::always_inline]] static void add_steps(const float* weights, std::int64_t stride,
                                               const float* x, std::int64_t x_stride,
                                               std::int64_t steps,
                                               Lanes::Floats (&sum)[kGroup][kV]) {
    for (std::int64_t step = 0; step < steps; ++step, ++weights, x += Lanes::kCount) {
      Lanes::Floats xs[kV];
      for (int v = 0; v < kV; ++v) xs[v] = Lanes::load(x + v * x_stride);
      for (int o = 0; o < kGroup; ++o) {
        const Lanes::Floats weight = Lanes::all(weights[o * stride]);
        for (int v = 0; v < kV; ++v) sum[o][v] = Format::multiply_add(weight, xs[v], sum[o][v]);
      }
    }
  }
};

template <typename BlocksFormat>
struct InRegisters : RegisterTile {
  using Format = BlocksFormat;
  static constexpr int kStepUnit = 1;
  // Steps in a range of the inputs: three panels of floats fit an L1 cache of 48 KiB.
  static constexpr int kSteps = Format::kPerStep == 1 ? 256 : 1024;
  // The stride of packed weights is not a power of two, which would map the rows of a group to few
  // sets of the cache.
  static constexpr int kWeightStride = kSteps + 16;

  struct Scope {};  // per-block state

  // sums[output][row] += the sums of `steps` steps, or = for the first range of inputs. Panels have
  // a stride of x_stride floats.
  static void multiply(const Weights& weights, const float* x, std::int64_t x_stride,
                       std::int64_t outputs, int vectors, std::int64_t steps, bool first,
                       float* sums) {
    const auto* from = static_cast<const float*>(weights.data);
    for (std::int64_t o = 0; o < outputs; o += kGroup) {
      const float* group_weights = from + o * kWeightStride;
      switch (vectors) {
        case 1: group<1>(group_weights, x, x_stride, steps, first, sums + o * kRows); break;
        case 2: group<2>(group_weights, x, x_stride, steps, first, sums + o * kRows); break;
        default: group<3>(group_weights, x, x_stride, steps, first, sums + o * kRows);
      }
    }
  }

 private:
  template <int kV>
  static void group(const float* weights, const float* x, std::int64_t x_stride, std::int64_t steps,
                    bool first, float* sums) {
    Lanes::Floats sum[kGroup][kV];
    for (int o = 0; o < kGroup; ++o) {
      for (int v = 0; v < kV; ++v) {
        sum[o][v] = first ? Lanes::zero() : Lanes::load(sums + o * kRows + v * Lanes::kCount);
      }
    }
    add_steps<Format>(weights, kWeightStride, x, x_stride, steps, sum);
    for (int o = 0; o < kGroup; ++o) {
      for (int v = 0; v < kV; ++v) Lanes::store(sums + o * kRows + v * Lanes::kCount, sum[o][v]);
    }
  }
};

// Weights of x's own type, read in place or packed. `Multiply` has the members of InRegisters, and
// in_place(stride, outputs, inputs): whether packing is unnecessary.
template <typename Multiply>
struct FloatWeights {
  using Format = typename Multiply::Format;
  static constexpr int kStretchUnit = Multiply::kStepUnit;  // unit of input ranges

  // Outputs [begin, end), `inputs` inputs from `input` on, in place or packed.
  static Weights stretch(const GemmTask& gemm, std::int64_t begin, std::int64_t end,
                         std::int64_t input, std::int64_t inputs, float* packed) {
    const auto* weight =
        static_cast<const typename Format::Element*>(gemm.weight) + begin * gemm.inputs + input;
    const auto stride = gemm.inputs * static_cast<std::int64_t>(sizeof(*weight));
    // The thread with this block also computes the next outputs.
    const bool last = input + inputs == gemm.inputs;
    const auto* next = last ? weight - input + (end - begin) * gemm.inputs : weight + inputs;
    Weights weights = {.data = weight,
                       .stride = stride,
                       .next = last && end == gemm.outputs ? nullptr : next,
                       .next_stride = stride,
                       .fetch_begin = 0,
                       .fetch_end = 0};
    if (!Multiply::in_place(stride, end - begin, inputs)) {
      pack_rows<Format, Multiply::kGroup, Multiply::kWeightStride>(weight, gemm.inputs, end - begin,
                                                                   inputs, packed);
      weights.data = packed;
      weights.stride = Multiply::kWeightStride * sizeof(float);
    }
    return weights;
  }
};

constexpr int kMaxBlockRows = 576;

// `Source`: FloatWeights, or a type with the same members.
template <typename Multiply, typename Source = FloatWeights<Multiply>>
struct Blocks {
  using Format = typename Multiply::Format;
  using T = typename Format::Element;
  static constexpr int kRows = Multiply::kRows;  // multiplied at once
  static constexpr int kOutputs = Multiply::kOutputs;
  static constexpr int kBlockRows = kMaxBlockRows / kRows * kRows;

  static std::int64_t steps_of(std::int64_t inputs) {
    return divide_up(inputs, Format::kPerStep * Multiply::kStepUnit) * Multiply::kStepUnit;
  }
  static std::int64_t panel_floats(std::int64_t inputs) { return Lanes::kCount * steps_of(inputs); }

  static void pack_panel(const GemmTask& gemm, std::int64_t panel, float* packed) {
    const std::int64_t row = panel * Lanes::kCount;
    pack_columns<Format, Multiply::kStepUnit>(
        static_cast<const T*>(gemm.x) + row * gemm.x_stride, gemm.x_stride,
        smaller(gemm.rows - row, Lanes::kCount), gemm.inputs, packed);
  }

  // Finishes the complete sums of up to kRows rows, [output][row].
  static void finish_rows(const GemmTask& gemm, const float* sums, std::int64_t first_row,
                          std::int64_t rows, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = 0; row < rows; row += Lanes::kCount) {
      for (std::int64_t o = begin; o < end; o += Lanes::kCount) {
        finish_columns<T>(gemm, sums + (o - begin) * kRows + row, kRows, first_row + row,
                          smaller(rows - row, Lanes::kCount), o, smaller(end - o, Lanes::kCount));
      }
    }
  }

  static void block(const GemmTask& gemm, const float* packed, std::int64_t begin, std::int64_t end,
                    std::int64_t first_row, std::int64_t rows) {
    [[maybe_unused]] const typename Multiply::Scope scope;
    alignas(64) float packed_weights[kOutputs * Multiply::kWeightStride];
    alignas(64) float sums[kBlockRows * kOutputs];
    const std::int64_t x_stride = panel_floats(gemm.inputs), steps = steps_of(gemm.inputs);
    const std::int64_t units = divide_up(steps, Source::kStretchUnit);
    const std::int64_t stretches = divide_up(units * Source::kStretchUnit, Multiply::kSteps);
    for (std::int64_t stretch = 0; stretch < stretches; ++stretch) {
      const bool last = stretch + 1 == stretches;
      const std::int64_t from = units * stretch / stretches * Source::kStretchUnit;
      const std::int64_t to =
          smaller(units * (stretch + 1) / stretches * Source::kStretchUnit, steps);
      const std::int64_t input = from * Format::kPerStep;
      const std::int64_t inputs = smaller(gemm.inputs, to * Format::kPerStep) - input;
      Weights weights = Source::stretch(gemm, begin, end, input, inputs, packed_weights);
      for (std::int64_t row = 0; row < rows; row += kRows) {
        const std::int64_t some = smaller(rows - row, kRows);
        float* some_sums = sums + row * kOutputs;
        weights.fetch_begin = weights.fetch_end;
        weights.fetch_end = static_cast<int>(Multiply::kGroup * (row + some) / rows);
        Multiply::multiply(
            weights, packed + (first_row + row) / Lanes::kCount * x_stride + from * Lanes::kCount,
            x_stride, end - begin, static_cast<int>(divide_up(some, Lanes::kCount)), to - from,
            stretch == 0, some_sums);
        if (last) finish_rows(gemm, some_sums, first_row + row, some, begin, end);
      }
    }
  }
};

template <typename DotWay>
std::int64_t prepared_rows(std::int64_t rows) {
  if constexpr (requires { DotWay::prepared_rows(rows); }) return DotWay::prepared_rows(rows);
  return rows;
}

template <typename DotWay>
constexpr DotKernels kDots = {.row_floats = DotWay::row_floats,
                              .prepared_rows = prepared_rows<DotWay>,
                              .prepare = DotWay::prepare,
                              .dot = DotWay::run};

// `Tile`: RegisterTile, or a type with the same constants.
template <typename BlockWay, typename Tile>
constexpr BlockKernels kBlocksOf = {
    .panel_rows = Lanes::kCount,
    .block_rows = BlockWay::kBlockRows,
    .block_outputs = Tile::kOutputs,
    .unit_rows = Tile::kUnitRows,
    .unit_outputs = Tile::kUnitOutputs,
    .row_cost = Tile::kRowCost,
    .output_cost = Tile::kOutputCost,
    .panel_floats = BlockWay::panel_floats,
    .pack_panel = BlockWay::pack_panel,
    .block = BlockWay::block,
};

template <typename Multiply, typename Source = FloatWeights<Multiply>>
constexpr BlockKernels kBlocks = kBlocksOf<Blocks<Multiply, Source>, Multiply>;

template <typename DotWay, typename Multiply>
constexpr GemmKernels kKernels = {kDots<DotWay>, kBlocks<Multiply>};

}  // namespace
}  // namespace nvllm::kernels::cpu
