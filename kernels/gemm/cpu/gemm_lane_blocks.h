// Many rows in the order of dot products: blocks of outputs by panels of rows, whose sums have the
// bits of gemm_dot.h. Include after the Lanes of an instruction set.
//
// A dot product sums in lanes: lane l accumulates its element of each step of the inputs, and at
// the end the lanes are added in halves (Lanes::sum). Blocks compute the same sums with rows of x
// in the lanes of their vectors: they process the terms of one lane after those of another, and add
// the sums as halves of halves. For that, x and weights are packed as [lane][term]; a panel of x,
// kCount rows, is [lane][term][row].
//
// Formats are those of dot products.
#pragma once

#include <vector>

#include "kernels/gemm/cpu/gemm_blocks.h"

namespace nvllm::kernels::cpu {
namespace {

// The lanes of a dot product in the order that completes halves of halves: 0, 4, 2, 6, 1, ...
constexpr int lane_of(int turn) {
  int lane = 0;
  for (int half = Lanes::kCount / 2, bit = 1; half > 0; half /= 2, bit *= 2) {
    if (turn & bit) lane += half;
  }
  return lane;
}

template <typename Format>
struct LaneBlocks : RegisterTile {
  using T = typename Format::Element;
  static constexpr int kLanes = Lanes::kCount;  // of a dot product, and rows of a panel
  static constexpr int kTerms = Format::kTerms;
  static constexpr int kBlockRows = kMaxBlockRows / kRows * kRows;
  // Pending sums of halves: of 2^i lanes at i; at kHalvings: of all lanes.
  static constexpr int kHalvings = __builtin_ctz(kLanes);
  static constexpr int kFetchedSteps = 2;  // ahead, of packed x
  // Size of packed weights, if the inputs are so few that 16 outputs fit. Each row of x is fetched
  // once for all outputs of a block.
  static constexpr std::int64_t kPackedFloats = 512 << 10;

  static std::int64_t terms_of(std::int64_t inputs) {
    return divide_up(inputs, Format::kStep) * kTerms;
  }
  static std::int64_t panel_floats(std::int64_t inputs) {
    return kLanes * kLanes * terms_of(inputs);
  }

  static void pack_panel(const GemmTask& gemm, std::int64_t panel, float* packed) {
    const std::int64_t first = panel * kLanes, rows = smaller(gemm.rows - first, kLanes);
    const T* from = static_cast<const T*>(gemm.x) + first * gemm.x_stride;
    const std::int64_t lane_floats = terms_of(gemm.inputs) * kLanes;
    for (std::int64_t i = 0; i < gemm.inputs; i += Format::kStep) {
      Lanes::Floats values[kTerms][kLanes];
      for (int row = 0; row < kLanes; ++row) {
        const auto terms = row < rows
                               ? load_step<Format>(from + row * gemm.x_stride + i, gemm.inputs - i)
                               : typename Format::Weights{};
        for (int term = 0; term < kTerms; ++term) values[term][row] = Format::term(terms, term);
      }
      for (int term = 0; term < kTerms; ++term, packed += kLanes) {
        Lanes::transpose(values[term]);
        for (int lane = 0; lane < kLanes; ++lane) {
          Lanes::store(packed + lane * lane_floats, values[term][lane]);
          fetch_to_write(packed + lane * lane_floats + kFetchedSteps * kTerms * kLanes);
        }
      }
    }
  }

  static void block(const GemmTask& gemm, const float* packed, std::int64_t begin, std::int64_t end,
                    std::int64_t first_row, std::int64_t rows) {
    const std::int64_t output_floats = packed_floats(gemm.inputs);
    std::int64_t outputs = kPackedFloats / output_floats / kLanes * kLanes;
    outputs = outputs < kLanes ? kLanes : smaller(outputs, kOutputs);
    thread_local std::vector<float> weights;
    weights.resize(outputs * output_floats);
    for (; begin < end; begin += outputs) {
      const std::int64_t some = smaller(end - begin, outputs);
      pack_weights(gemm, begin, some, weights.data());
      for (std::int64_t row = 0; row < rows; row += kRows) {
        multiply(gemm, weights.data(), packed, begin, some, first_row + row,
                 smaller(rows - row, kRows));
      }
    }
  }

 private:
  // Floats per output: the terms of each lane fill whole vectors. The stride is not a power of two,
  // which would map the outputs of a group to few sets of the cache.
  static std::int64_t lane_floats(std::int64_t inputs) {
    return divide_up(terms_of(inputs), kLanes) * kLanes;
  }
  static std::int64_t packed_floats(std::int64_t inputs) {
    return kLanes * lane_floats(inputs) + kLanes;
  }

  // Packs as [output][lane][term], with zeros up to a multiple of kGroup outputs.
  static void pack_weights(const GemmTask& gemm, std::int64_t begin, std::int64_t outputs,
                           float* packed) {
    const T* weight = static_cast<const T*>(gemm.weight) + begin * gemm.inputs;
    const std::int64_t of_lane = lane_floats(gemm.inputs);
    constexpr std::int64_t kSteps = kLanes / kTerms;  // steps that fill a vector of terms
    const std::int64_t all = divide_up(outputs, kGroup) * kGroup;
    for (std::int64_t o = 0; o < all; ++o, weight += gemm.inputs) {
      float* to = packed + o * packed_floats(gemm.inputs);
      for (std::int64_t i = 0; i < gemm.inputs; i += kSteps * Format::kStep, to += kLanes) {
        Lanes::Floats values[kLanes];
        for (int s = 0; s < kSteps; ++s) {
          const std::int64_t input = i + s * Format::kStep;
          const auto terms = o < outputs && input < gemm.inputs
                                 ? load_step<Format>(weight + input, gemm.inputs - input)
                                 : typename Format::Weights{};
          for (int term = 0; term < kTerms; ++term)
            values[s * kTerms + term] = Format::term(terms, term);
        }
        Lanes::transpose(values);
        for (int lane = 0; lane < kLanes; ++lane) Lanes::store(to + lane * of_lane, values[lane]);
      }
    }
  }

  // At most kRows rows.
  static void multiply(const GemmTask& gemm, const float* weights, const float* packed,
                       std::int64_t begin, std::int64_t outputs, std::int64_t first_row,
                       std::int64_t rows) {
    const std::int64_t terms = terms_of(gemm.inputs), x_stride = panel_floats(gemm.inputs);
    const float* x = packed + first_row / kLanes * x_stride;
    alignas(64) float sums[kHalvings + 1][kOutputs * kRows];
    for (int turn = 0; turn < kLanes; ++turn) {
      const int lane = lane_of(turn);
      const float* lane_x = x + lane * terms * kLanes;
      for (std::int64_t o = 0; o < outputs; o += kGroup) {
        const float* from =
            weights + o * packed_floats(gemm.inputs) + lane * lane_floats(gemm.inputs);
        const auto add = [&]<int kV>() {
          group<kV>(from, packed_floats(gemm.inputs), lane_x, x_stride, terms, turn, o * kRows,
                    sums);
        };
        switch (divide_up(rows, kLanes)) {
          case 1: add.template operator()<1>(); break;
          case 2: add.template operator()<2>(); break;
          default: add.template operator()<3>();
        }
      }
    }
    for (std::int64_t row = 0; row < rows; row += kLanes) {
      for (std::int64_t o = 0; o < outputs; o += kLanes) {
        finish_columns<T>(gemm, sums[kHalvings] + o * kRows + row, kRows, first_row + row,
                          smaller(rows - row, kLanes), begin + o, smaller(outputs - o, kLanes));
      }
    }
  }

  // Adds a lane's terms of kGroup outputs and kV panels with a stride of x_stride floats.
  template <int kV>
  static void group(const float* weights, std::int64_t stride, const float* x,
                    std::int64_t x_stride, std::int64_t terms, int turn, std::int64_t at,
                    float (&sums)[kHalvings + 1][kOutputs * kRows]) {
    Lanes::Floats sum[kGroup][kV];
    for (int o = 0; o < kGroup; ++o) {
      for (int v = 0; v < kV; ++v) sum[o][v] = Lanes::zero();
    }
    add_steps<Format>(weights, stride, x, x_stride, terms, sum);
    int level = 0;
    for (; turn >> level & 1; ++level) {
      const float* half = sums[level] + at;
      for (int o = 0; o < kGroup; ++o) {
        for (int v = 0; v < kV; ++v)
          sum[o][v] = Lanes::add(Lanes::load(half + o * kRows + v * kLanes), sum[o][v]);
      }
    }
    for (int o = 0; o < kGroup; ++o) {
      for (int v = 0; v < kV; ++v)
        Lanes::store(sums[level] + at + o * kRows + v * kLanes, sum[o][v]);
    }
  }
};

// A row has the same bits in the few-rows and the many-rows path.
template <typename Format>
constexpr GemmKernels kInvariantKernels = {kDots<Dot<Format>>,
                                           kBlocksOf<LaneBlocks<Format>, RegisterTile>};

}  // namespace
}  // namespace nvllm::kernels::cpu
