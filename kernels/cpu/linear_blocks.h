// Many rows: blocks of outputs by panels of rows. After the Lanes of an instruction set and linear_dot.h.
//
// x and weights are packed in dwords, one per step of the inputs: a float, or a pair of bfloat16. A panel of
// x is [step][row of the panel]. Sums come as [output][row of the panel], and are transposed at the end.
//
// A format is: Element, kPerStep (inputs in a dword), load_part(from, count) (kCount dwords of up to that
// many inputs, zeros behind), multiply_add(weight, x, sum).
#pragma once

#include "kernels/cpu/linear_dot.h"

namespace nvllm::kernels::cpu {
namespace {

template <typename T>
struct BlocksOfFloats {
  using Element = T;
  static constexpr int kPerStep = 1;
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

// Rows of x or of the weights, kCount at most, as columns: to[step * stride + row], for a multiple of
// kStepUnit steps. Rows from row_count on, and inputs that there are not, are zeros. The two halves of a
// column go to `to` and `upper`.
template <typename Format, int kStepUnit>
inline void pack_columns(const typename Format::Element* from, std::int64_t from_stride,
                         std::int64_t row_count, std::int64_t inputs, float* to, float* upper,
                         std::int64_t stride) {
  constexpr std::int64_t kInputs = Lanes::kCount * Format::kPerStep;
  for (std::int64_t i = 0; i < inputs; i += kInputs) {
    Lanes::Floats values[Lanes::kCount];
    const std::int64_t count = least(inputs - i, kInputs);
    for (int row = 0; row < Lanes::kCount; ++row) {
      values[row] =
          row < row_count ? Format::load_part(from + row * from_stride + i, count) : Lanes::zero();
    }
    Lanes::transpose(values);
    const std::int64_t steps = divide_up(count, Format::kPerStep * kStepUnit) * kStepUnit;
    for (std::int64_t step = 0; step < steps; ++step, to += stride, upper += stride) {
      Lanes::store_halves(to, upper, values[step]);
    }
  }
}

// The sums of a group of outputs and a panel in registers, whose lanes are rows of x; weights are broadcast
// to all lanes. They are packed as [group][step][output of the group].
template <typename BlocksFormat>
struct InRegisters {
  using Format = BlocksFormat;
  using T = typename Format::Element;
  static constexpr int kVectors = 3;  // of rows in a panel
  static constexpr int kRows = kVectors * Lanes::kCount;
  static constexpr int kGroup = Lanes::kCount / 2;  // outputs
  static constexpr int kOutputs = 48;               // in a block
  static constexpr int kStepUnit = 1;
  static constexpr int kSteps = 1024;  // in a stretch of the inputs
  static constexpr int kWeightFloats = kOutputs * kSteps;
  static_assert(kVectors * kGroup <= Lanes::kAccumulators && kOutputs % Lanes::kCount == 0);

  static void pack_weights(const T* weight, std::int64_t stride, std::int64_t outputs,
                           std::int64_t inputs, float* packed) {
    const std::int64_t group = kGroup * divide_up(inputs, Format::kPerStep);
    for (std::int64_t o = 0; o < outputs; o += Lanes::kCount) {
      float* to = packed + o / kGroup * group;
      pack_columns<Format, 1>(weight + o * stride, stride, least(outputs - o, Lanes::kCount),
                              inputs, to, to + group, kGroup);
    }
  }

  // sums[output][row] += products of `steps` steps, or = if this is the first stretch.
  static void multiply(const float* weights, const float* x, std::int64_t outputs, int vectors,
                       std::int64_t steps, bool first, float* sums) {
    for (std::int64_t o = 0; o < outputs; o += kGroup) {
      switch (vectors) {
        case 1: group<1>(weights + o * steps, x, steps, first, sums + o * kRows); break;
        case 2: group<2>(weights + o * steps, x, steps, first, sums + o * kRows); break;
        default: group<3>(weights + o * steps, x, steps, first, sums + o * kRows);
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
    for (std::int64_t step = 0; step < steps; ++step, weights += kGroup, x += kRows) {
      Lanes::Floats xs[kV];
      for (int v = 0; v < kV; ++v) xs[v] = Lanes::load(x + v * Lanes::kCount);
      for (int o = 0; o < kGroup; ++o) {
        const Lanes::Floats weight = Lanes::all(weights[o]);
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
      float* to = packed + v * Lanes::kCount;
      pack_columns<Format, Multiply::kStepUnit>(
          static_cast<const T*>(product.x) + row * product.x_stride, product.x_stride,
          least(product.rows - row, Lanes::kCount), product.inputs, to, to + Lanes::kCount / 2,
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
        const std::int64_t rows = least(last_row - row, Lanes::kCount);
        for (std::int64_t r = 0; r < rows; ++r) {
          finish<T>(product, row + r, o, least(end - o, Lanes::kCount), values[r]);
        }
      }
    }
  }

  static void block(const Product& product, const float* packed, std::int64_t begin,
                    std::int64_t end, std::int64_t first_panel, std::int64_t last_panel) {
    alignas(64) float weights[Multiply::kWeightFloats];
    alignas(64) float sums[kPanels * kOutputs * kRows];
    const T* weight = static_cast<const T*>(product.weight) + begin * product.inputs;
    const std::int64_t steps = steps_of(product.inputs);
    const std::int64_t units = steps / Multiply::kStepUnit;
    const std::int64_t stretches = divide_up(steps, Multiply::kSteps);
    for (std::int64_t stretch = 0; stretch < stretches; ++stretch) {
      const std::int64_t from = units * stretch / stretches * Multiply::kStepUnit;
      const std::int64_t to = units * (stretch + 1) / stretches * Multiply::kStepUnit;
      const std::int64_t input = from * Format::kPerStep;
      Multiply::pack_weights(weight + input, product.inputs, end - begin,
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
