// GEMMs of integers with AVX512-VNNI, whose instruction multiplies four unsigned weights by four
// signed activations and adds them to a dword.
#include "kernels/gemm/cpu/quantized_lanes_avx512.h"
// Behind the lanes.
#include "kernels/gemm/cpu/quantized_dot.h"

namespace nvllm::kernels::cpu {
namespace {

struct Int4 {
  static constexpr int kZero = 8;
  __m512i low, high;
  explicit Int4(const std::byte* from) {
    const __m512i block = _mm512_loadu_si512(from), mask = _mm512_set1_epi8(15);
    low = _mm512_and_si512(block, mask);
    high = _mm512_and_si512(_mm512_srli_epi16(block, 4), mask);
  }
  __m512i dot(const std::int8_t* x) const {
    const __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), low, _mm512_load_si512(x));
    return _mm512_dpbusd_epi32(sums, high, _mm512_load_si512(x + 64));
  }
};

struct Int8 {
  static constexpr int kZero = 128;
  __m512i block;
  explicit Int8(const std::byte* from) : block(_mm512_loadu_si512(from)) {}
  __m512i dot(const std::int8_t* x) const {
    return _mm512_dpbusd_epi32(_mm512_setzero_si512(), block, _mm512_load_si512(x));
  }
};

// Many rows: panels of 16 rows of x, quantized, by blocks of outputs. In a panel each group of 32
// inputs is eight dwords of all rows, [dword][row], then the rows' scales and their sums of scale *
// integer. A block's weights are unpacked to bytes in the order of these dwords.
template <WeightFormat kFormat>
struct IntegerBlocks {
  static constexpr bool kInt4 = kFormat == WeightFormat::int4;
  static constexpr int kParts = kInt4 ? 2 : 1, kBlockInputs = kParts * 64;
  static constexpr int kGroup = kActivationGroup, kBlockGroups = kBlockInputs / kGroup;
  static constexpr int kRow = 16;  // floats of all rows of a panel
  static constexpr int kDwords = kGroup / 4;
  static constexpr int kGroupFloats = (kDwords + 2) * kRow;
  static constexpr int kVectors = 3;  // panels at a time
  static constexpr int kRows = kVectors * kRow, kBlockRows = 576;
  static constexpr int kGroupOutputs = 4, kOutputs = 64;  // at a time, and of a block
  static constexpr int kStretchGroups = 16;  // so that three panels fit the first-level cache

  static std::int64_t groups_of(std::int64_t inputs) { return divide_up(inputs, kGroup); }
  static std::int64_t panel_floats(std::int64_t inputs) { return groups_of(inputs) * kGroupFloats; }

  static void pack_panel(const GemmTask& gemm, std::int64_t panel, float* packed) {
    const std::int64_t rows = smaller(gemm.rows - panel * kRow, kRow);
    const std::int64_t x_bytes = gemm.dtype == DType::f32 ? 4 : 2;
    GemmTask part = gemm;
    part.group = kGroup;
    alignas(64) QuantizedActivations<kParts> blocks[kRow] = {};
    for (std::int64_t i = 0; i < gemm.inputs; i += kBlockInputs) {
      part.x = static_cast<const std::byte*>(gemm.x) + i * x_bytes;
      part.inputs = smaller(gemm.inputs - i, kBlockInputs);
      quantize_activations<kParts, 0>(part, panel * kRow, static_cast<int>(rows), 0, part.inputs,
                                      reinterpret_cast<float*>(blocks));
      for (int g = 0; g < kBlockGroups && i + g * kGroup < gemm.inputs; ++g) {
        float* const scales = packed + g * kGroupFloats + kDwords * kRow;
        for (int row = 0; row < kRow; ++row) {
          scales[row] = blocks[row].scales[g * 4 / kBlockGroups];
          scales[kRow + row] = blocks[row].sums[2 * g + 1];
        }
      }
      for (int part_of = 0; part_of < kParts; ++part_of)
        store_dwords(blocks, part_of, gemm.inputs - i, packed);
      packed += kBlockGroups * kGroupFloats;
    }
  }

  static void block(const GemmTask& gemm, const float* packed, std::int64_t begin, std::int64_t end,
                    std::int64_t first_row, std::int64_t rows) {
    alignas(64) UnpackedWeights weights;
    alignas(64) float sums[kBlockRows * kOutputs];
    const std::int64_t x_stride = panel_floats(gemm.inputs);
    // Stretches begin with a weight's block.
    const std::int64_t blocks = divide_up(gemm.inputs, kBlockInputs);
    const std::int64_t stretches = divide_up(blocks * kBlockGroups, kStretchGroups);
    for (std::int64_t stretch = 0; stretch < stretches; ++stretch) {
      const std::int64_t from = blocks * stretch / stretches;
      const std::int64_t to = blocks * (stretch + 1) / stretches;
      const std::int64_t groups =
          smaller(to * kBlockGroups, groups_of(gemm.inputs)) - from * kBlockGroups;
      unpack(gemm, begin, end, from, to, weights);
      const float* const x =
          packed + first_row / kRow * x_stride + from * kBlockGroups * kGroupFloats;
      for (std::int64_t row = 0; row < rows; row += kRows) {
        const int vectors = static_cast<int>(divide_up(smaller(rows - row, kRows), kRow));
        multiply(weights, x + row / kRow * x_stride, x_stride, end - begin, vectors, groups,
                 stretch == 0, sums + row * kOutputs);
      }
    }
    for (std::int64_t row = 0; row < rows; row += kRow) {
      for (std::int64_t o = begin; o < end; o += kRow) {
        finish_block(gemm,
                     sums + row / kRows * kRows * kOutputs + row % kRows + (o - begin) * kRows,
                     first_row + row, smaller(rows - row, kRow), o, smaller(end - o, kRow));
      }
    }
  }

 private:
  struct Factors {
    float scale, offset;  // of the dot product of integers, and of the sum of x
  };
  // The weights of a stretch of a block.
  struct UnpackedWeights {
    std::int32_t dwords[kOutputs][kStretchGroups][kDwords];
    Factors factors[kOutputs][kStretchGroups];
  };

  // The dwords of the low (0) or high halves of int4's bytes, or of int8, of all rows.
  static void store_dwords(const QuantizedActivations<kParts>* blocks, int part,
                           std::int64_t inputs, float* packed) {
    __m512 rows[kRow];
    for (int row = 0; row < kRow; ++row)
      rows[row] = _mm512_load_ps(reinterpret_cast<const float*>(blocks[row].integers + part * 64));
    Lanes::transpose(rows);
    for (int t = 0; t < 4; ++t) {
      for (int k = 0; k < 4; ++k) {
        const int group = kInt4 ? k : k / 2, dword = kInt4 ? part * 4 + t : k % 2 * 4 + t;
        if (group * kGroup < inputs)
          _mm512_store_ps(packed + group * kGroupFloats + dword * kRow, rows[4 * t + k]);
      }
    }
  }

  static void unpack(const GemmTask& gemm, std::int64_t begin, std::int64_t end, std::int64_t from,
                     std::int64_t to, UnpackedWeights& weights) {
    const QuantizedRows rows = QuantizedRows(gemm).from(begin);
    const std::int64_t outputs = end - begin;
    with_pairs(gemm, [&](auto pairs, int share) {
      constexpr int kPairs = decltype(pairs)::value;
      for (std::int64_t o = 0; o < outputs; ++o) {
        const QuantizedRows row = rows.from(o);
        for (std::int64_t b = from; b < to; ++b) {
          const std::int64_t group = (b - from) * kBlockGroups;
          unpack_values(row.values + b * kQuantizedBlockBytes, weights.dwords[o][group]);
          unpack_scales<kPairs>(row.scales + b / share * kPairs * 4, weights.factors[o] + group);
        }
      }
    });
    for (std::int64_t o = outputs; o < divide_up(outputs, kGroupOutputs) * kGroupOutputs; ++o) {
      for (int group = 0; group < kStretchGroups; ++group) {
        for (std::int32_t& dword : weights.dwords[o][group]) dword = 0;
        weights.factors[o][group] = {0, 0};
      }
    }
  }

  // From dwords in the order 4 t + k to 4 k + t, where k is a group's, or half a group's.
  static void unpack_values(const std::byte* from, std::int32_t* to) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i block = _mm512_permutexvar_epi32(order, _mm512_loadu_si512(from));
    if constexpr (kInt4) {
      const __m512i mask = _mm512_set1_epi8(15);
      const __m512i low = _mm512_and_si512(block, mask);
      const __m512i high = _mm512_and_si512(_mm512_srli_epi16(block, 4), mask);
      // In each group the low quarter comes first, then the high one.
      const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
      const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
      _mm512_storeu_si512(to, _mm512_permutex2var_epi64(low, first, high));
      _mm512_storeu_si512(to + 16, _mm512_permutex2var_epi64(low, second, high));
    } else {
      _mm512_storeu_si512(to, block);
    }
  }

  template <int kPairs>
  static void unpack_scales(const std::byte* from, Factors* to) {
    const __m512 both = BlockLanes::load_scales<kPairs>(from);
    const __m512 scale = BlockLanes::spread<kPairs, 0>(both);
    const __m512 zero = _mm512_set1_ps(kInt4 ? -8 : -128);
    const __m512 offset = _mm512_fmadd_ps(scale, zero, BlockLanes::spread<kPairs, 1>(both));
    alignas(64) float scales[16], offsets[16];
    _mm512_store_ps(scales, scale);
    _mm512_store_ps(offsets, offset);
    for (int g = 0; g < kBlockGroups; ++g) {
      const int k = g * 4 / kBlockGroups;
      to[g] = {scales[k], offsets[k]};
    }
  }

  // sums[output][row] += those of some groups, or = if this is the first stretch.
  static void multiply(const UnpackedWeights& weights, const float* x, std::int64_t x_stride,
                       std::int64_t outputs, int vectors, std::int64_t groups, bool first,
                       float* sums) {
    for (std::int64_t o = 0; o < outputs; o += kGroupOutputs, sums += kGroupOutputs * kRows) {
      switch (vectors) {
        case 1: some_outputs<1>(weights, o, x, x_stride, groups, first, sums); break;
        case 2: some_outputs<2>(weights, o, x, x_stride, groups, first, sums); break;
        default: some_outputs<3>(weights, o, x, x_stride, groups, first, sums);
      }
    }
  }

  template <int kV>
  static void some_outputs(const UnpackedWeights& weights, std::int64_t output, const float* x,
                           std::int64_t x_stride, std::int64_t groups, bool first, float* sums) {
    __m512 sum[kGroupOutputs][kV];
    for (int o = 0; o < kGroupOutputs; ++o) {
      for (int v = 0; v < kV; ++v)
        sum[o][v] = first ? _mm512_setzero_ps() : _mm512_load_ps(sums + o * kRows + v * kRow);
    }
    for (std::int64_t g = 0; g < groups; ++g, x += kGroupFloats) {
      __m512i integers[kGroupOutputs][kV];
      for (auto& of_output : integers) {
        for (__m512i& lanes : of_output) lanes = _mm512_setzero_si512();
      }
      for (int d = 0; d < kDwords; ++d) {
        __m512i xs[kV];
        for (int v = 0; v < kV; ++v) xs[v] = _mm512_load_si512(x + v * x_stride + d * kRow);
        for (int o = 0; o < kGroupOutputs; ++o) {
          const __m512i weight = _mm512_set1_epi32(weights.dwords[output + o][g][d]);
          for (int v = 0; v < kV; ++v)
            integers[o][v] = _mm512_dpbusd_epi32(integers[o][v], weight, xs[v]);
        }
      }
      for (int v = 0; v < kV; ++v) {
        const float* const scales = x + v * x_stride + kDwords * kRow;
        const __m512 scale = _mm512_load_ps(scales), total = _mm512_load_ps(scales + kRow);
        for (int o = 0; o < kGroupOutputs; ++o) {
          const Factors& factors = weights.factors[output + o][g];
          const __m512 terms = _mm512_mul_ps(_mm512_cvtepi32_ps(integers[o][v]), scale);
          sum[o][v] = _mm512_fmadd_ps(terms, _mm512_set1_ps(factors.scale), sum[o][v]);
          sum[o][v] = _mm512_fmadd_ps(total, _mm512_set1_ps(factors.offset), sum[o][v]);
        }
      }
    }
    for (int o = 0; o < kGroupOutputs; ++o) {
      for (int v = 0; v < kV; ++v) _mm512_store_ps(sums + o * kRows + v * kRow, sum[o][v]);
    }
  }

  static void finish_block(const GemmTask& gemm, const float* sums, std::int64_t row,
                           std::int64_t rows, std::int64_t output, std::int64_t count) {
    switch (gemm.dtype) {
      case DType::f32: return finish_columns<float>(gemm, sums, kRows, row, rows, output, count);
      case DType::bf16: return finish_columns<Bf16>(gemm, sums, kRows, row, rows, output, count);
      default: finish_columns<F16>(gemm, sums, kRows, row, rows, output, count);
    }
  }
};

template <WeightFormat kFormat>
constexpr BlockKernels kIntegerBlocks = {
    .panel_rows = IntegerBlocks<kFormat>::kRow,
    .block_rows = IntegerBlocks<kFormat>::kBlockRows,
    .block_outputs = IntegerBlocks<kFormat>::kOutputs,
    .unit_rows = IntegerBlocks<kFormat>::kRow,
    .unit_outputs = IntegerBlocks<kFormat>::kRow,
    .row_cost = 32,
    .output_cost = 16,
    .panel_floats = IntegerBlocks<kFormat>::panel_floats,
    .pack_panel = IntegerBlocks<kFormat>::pack_panel,
    .block = IntegerBlocks<kFormat>::block,
};

}  // namespace

const BlockKernels& quantized_blocks_avx512_vnni(WeightFormat format) {
  return format == WeightFormat::int4 ? kIntegerBlocks<WeightFormat::int4>
                                      : kIntegerBlocks<WeightFormat::int8>;
}

const DotKernels& quantized_dots_avx512_vnni(WeightFormat format) {
  if (format == WeightFormat::int4) {
    return kDots<QuantizedDot<IntegerTerms<WeightFormat::int4, Int4>>>;
  }
  return kDots<QuantizedDot<IntegerTerms<WeightFormat::int8, Int8>>>;
}

}  // namespace nvllm::kernels::cpu
