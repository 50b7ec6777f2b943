// Many rows: blocks of outputs by panels of rows. After the Lanes of an instruction set and linear_dot.h.
//
// x and weights are packed in dwords, one per step of the inputs: a float, or a pair of bfloat16. A panel of
// x is [step][row of the panel]. Sums come as [output][row of the panel], and are transposed at the end.
//
// A format is: Element, kPerStep (inputs in a dword), load(from) (kCount dwords), load_part(from, count) (the
// same of fewer inputs, zeros behind), multiply_add(weight, x, sum).
#pragma once

#include "kernels/cpu/linear_dot.h"

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

inline std::int64_t least(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// A vector of dwords: up to `inputs` inputs, zeros behind.
template <typename Format>
inline Lanes::Floats load_dwords(const typename Format::Element* from, std::int64_t inputs) {
  constexpr std::int64_t kInputs = Lanes::kCount * Format::kPerStep;
  return inputs >= kInputs ? Format::load(from) : Format::load_part(from, inputs);
}

// Rows of x, kCount at most, as columns: to[step * stride + row], for a multiple of kStepUnit steps. Rows
// from row_count on, and inputs that there are not, are zeros.
template <typename Format, int kStepUnit>
inline void pack_columns(const typename Format::Element* from, std::int64_t from_stride,
                         std::int64_t row_count, std::int64_t inputs, float* to,
                         std::int64_t stride) {
  constexpr std::int64_t kInputs = Lanes::kCount * Format::kPerStep;
  for (std::int64_t i = 0; i < inputs; i += kInputs) {
    Lanes::Floats values[Lanes::kCount];
    for (int row = 0; row < Lanes::kCount; ++row) {
      values[row] = row < row_count ? load_dwords<Format>(from + row * from_stride + i, inputs - i)
                                    : Lanes::zero();
    }
    Lanes::transpose(values);
    const std::int64_t steps =
        divide_up(least(inputs - i, kInputs), Format::kPerStep * kStepUnit) * kStepUnit;
    for (std::int64_t step = 0; step < steps; ++step, to += stride) {
      Lanes::store(to, values[step]);
    }
  }
}

// Rows of weights as rows of dwords, and after them rows of zeros up to a multiple of kGroup; all are whole
// vectors, with zeros behind the inputs.
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

// The sums of a group of outputs and a panel in registers, whose lanes are rows of x; weights are broadcast
// to all lanes.
template <typename BlocksFormat>
struct InRegisters {
  using Format = BlocksFormat;
  using T = typename Format::Element;
  static constexpr int kVectors = 3;  // of rows in a panel
  static constexpr int kRows = kVectors * Lanes::kCount;
  static constexpr int kGroup = Lanes::kCount / 2;  // outputs
  static constexpr int kOutputs = 64;               // in a block
  static constexpr int kStepUnit = 1;
  static constexpr int kSteps = 1024;  // in a stretch of the inputs
  // Rows of packed weights do not lie a power of two apart, which would put those of a group into few sets
  // of the cache.
  static constexpr int kWeightStride = kSteps + 16;
  static_assert(kVectors * kGroup <= Lanes::kAccumulators && kOutputs % Lanes::kCount == 0);

  // sums[output][row] += products of `steps` steps, or = if this is the first stretch.
  static void multiply(const float* weights, const float* x, std::int64_t outputs, int vectors,
                       std::int64_t steps, bool first, float* sums) {
    for (std::int64_t o = 0; o < outputs; o += kGroup) {
      const float* group_weights = weights + o * kWeightStride;
      switch (vectors) {
        case 1: group<1>(group_weights, x, steps, first, sums + o * kRows); break;
        case 2: group<2>(group_weights, x, steps, first, sums + o * kRows); break;
        default: group<3>(group_weights, x, steps, first, sums + o * kRows);
      }
    }
  }

 private:
  template <int kV>
  static void group(const float* weights, const float* x, std::int64_t steps, bool first,
                    float* sums) {
    Lanes::Floats sum[kGroup][kV];
    for (int o = 0; o < kGroup; ++o) {
      for (int v = 0; v < kV; ++v) {
        sum[o][v] = first ? Lanes::zero() : Lanes::load(sums + o * kRows + v * Lanes::kCount);
      }
    }
    for (std::int64_t step = 0; step < steps; ++step, ++weights, x += kRows) {
      Lanes::Floats xs[kV];
      for (int v = 0; v < kV; ++v) xs[v] = Lanes::load(x + v * Lanes::kCount);
      for (int o = 0; o < kGroup; ++o) {
        const Lanes::Floats weight = Lanes::all(weights[o * kWeightStride]);
        for (int v = 0; v < kV; ++v) sum[o][v] = Format::multiply_add(weight, xs[v], sum[o][v]);
      }
    }
    for (int o = 0; o < kGroup; ++o) {
      for (int v = 0; v < kV; ++v) Lanes::store(sums + o * kRows + v * Lanes::kCount, sum[o][v]);
    }
  }
};

// `Multiply`: InRegisters, or what has the same members.
template <typename Multiply>
struct Blocks {
  using Format = typename Multiply::Format;
  using T = typename Format::Element;
  static constexpr int kRows = Multiply::kRows;
  static constexpr int kOutputs = Multiply::kOutputs;
  static constexpr int kPanels = 576 / kRows;

  static std::int64_t steps_of(std::int64_t inputs) {
    return divide_up(inputs, Format::kPerStep * Multiply::kStepUnit) * Multiply::kStepUnit;
  }
  static std::int64_t panel_floats(std::int64_t inputs) { return kRows * steps_of(inputs); }
  // Vectors of a panel that hold rows.
  static int vectors_of(const Product& product, std::int64_t panel) {
    return static_cast<int>(divide_up(least(product.rows - panel * kRows, kRows), Lanes::kCount));
  }

  static void pack_panel(const Product& product, std::int64_t panel, float* packed) {
    const int vectors = vectors_of(product, panel);
    for (int v = 0; v < vectors; ++v) {
      const std::int64_t row = panel * kRows + v * Lanes::kCount;
      pack_columns<Format, Multiply::kStepUnit>(
          static_cast<const T*>(product.x) + row * product.x_stride, product.x_stride,
          least(product.rows - row, Lanes::kCount), product.inputs, packed + v * Lanes::kCount,
          kRows);
    }
  }

  // Whole sums of a panel, [output][row].
  static void finish_panel(const Product& product, const float* sums, std::int64_t panel,
                           std::int64_t begin, std::int64_t end) {
    const std::int64_t last_row = least(product.rows, (panel + 1) * kRows);
    for (std::int64_t row = panel * kRows; row < last_row; row += Lanes::kCount) {
      for (std::int64_t o = begin; o < end; o += Lanes::kCount) {
        Lanes::Floats values[Lanes::kCount];
        const float* from = sums + (o - begin) * kRows + (row - panel * kRows);
        for (int i = 0; i < Lanes::kCount; ++i) values[i] = Lanes::load(from + i * kRows);
        Lanes::transpose(values);
        finish<T>(product, row, least(last_row - row, Lanes::kCount), o,
                  least(end - o, Lanes::kCount), values);
      }
    }
  }

  static void block(const Product& product, const float* packed, std::int64_t begin,
                    std::int64_t end, std::int64_t first_panel, std::int64_t last_panel) {
    alignas(64) float weights[kOutputs * Multiply::kWeightStride];
    alignas(64) float sums[kPanels * kOutputs * kRows];
    const T* weight = static_cast<const T*>(product.weight) + begin * product.inputs;
    const std::int64_t steps = steps_of(product.inputs);
    const std::int64_t units = steps / Multiply::kStepUnit;
    const std::int64_t stretches = divide_up(steps, Multiply::kSteps);
    for (std::int64_t stretch = 0; stretch < stretches; ++stretch) {
      const std::int64_t from = units * stretch / stretches * Multiply::kStepUnit;
      const std::int64_t to = units * (stretch + 1) / stretches * Multiply::kStepUnit;
      const std::int64_t input = from * Format::kPerStep;
      pack_rows<Format, Multiply::kGroup, Multiply::kWeightStride>(
          weight + input, product.inputs, end - begin,
          least(product.inputs, to * Format::kPerStep) - input, weights);
      for (std::int64_t panel = first_panel; panel < last_panel; ++panel) {
        float* panel_sums = sums + (panel - first_panel) * kOutputs * kRows;
        Multiply::multiply(weights, packed + (panel * steps + from) * kRows, end - begin,
                           vectors_of(product, panel), to - from, stretch == 0, panel_sums);
        if (stretch + 1 == stretches) finish_panel(product, panel_sums, panel, begin, end);
      }
    }
  }
};

template <typename DotFormat, typename Multiply>
constexpr LinearKernels kKernels = {
    .row_floats = Dot<DotFormat>::row_floats,
    .prepare_row = Dot<DotFormat>::prepare_row,
    .dot = Dot<DotFormat>::run,
    .panel_rows = Blocks<Multiply>::kRows,
    .block_outputs = Blocks<Multiply>::kOutputs,
    .block_panels = Blocks<Multiply>::kPanels,
    .panel_floats = Blocks<Multiply>::panel_floats,
    .pack_panel = Blocks<Multiply>::pack_panel,
    .block = Blocks<Multiply>::block,
};

}  // namespace
}  // namespace nvllm::kernels::cpu
