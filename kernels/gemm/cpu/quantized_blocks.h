// Many rows by quantized weights: a block's weights are dequantized once for all of its rows, to
// the floats that the instruction set's blocks multiply (gemm_blocks.h).
#pragma once

#include "kernels/gemm/cpu/gemm_blocks.h"
#include "kernels/gemm/cpu/quantized_dot.h"

namespace nvllm::kernels::cpu {
namespace {

// A block's bytes in input order; for 4-bit values one byte each.
template <WeightFormat kFormat>
inline void order_bytes(const std::byte* from, std::uint8_t* to) {
  // Steps of 16 or 32 inputs (k) are columns of dwords of the four threads' bytes.
  const auto* threads = reinterpret_cast<const __m128i*>(from);
  const __m128i t0 = _mm_loadu_si128(threads), t1 = _mm_loadu_si128(threads + 1);
  const __m128i t2 = _mm_loadu_si128(threads + 2), t3 = _mm_loadu_si128(threads + 3);
  const __m128i a = _mm_unpacklo_epi32(t0, t1), b = _mm_unpacklo_epi32(t2, t3);
  const __m128i c = _mm_unpackhi_epi32(t0, t1), d = _mm_unpackhi_epi32(t2, t3);
  const __m128i steps[4] = {_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b),
                            _mm_unpacklo_epi64(c, d), _mm_unpackhi_epi64(c, d)};
  auto* out = reinterpret_cast<__m128i*>(to);
  for (const __m128i step : steps) {
    if constexpr (has_nibbles(kFormat)) {
      const __m128i mask = _mm_set1_epi8(15);
      // Inputs 0 to 7 and 16 to 23 alternate in the low nibbles, the others in the high ones.
      const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
      const __m128i low = _mm_shuffle_epi8(_mm_and_si128(step, mask), order);
      const __m128i high = _mm_shuffle_epi8(_mm_and_si128(_mm_srli_epi16(step, 4), mask), order);
      _mm_store_si128(out++, _mm_unpacklo_epi64(low, high));
      _mm_store_si128(out++, _mm_unpackhi_epi64(low, high));
    } else {
      const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
      _mm_store_si128(out++, _mm_shuffle_epi8(step, order));
    }
  }
}

template <typename Multiply>
struct DequantizedWeights {
  using Format = typename Multiply::Format;
  static constexpr std::int64_t kUnitInputs = 128;  // of whole blocks and groups
  static constexpr std::int64_t kStretchUnit = kUnitInputs / Format::kPerStep;
  static_assert(kStretchUnit % Multiply::kStepUnit == 0 && Multiply::kSteps % kStretchUnit == 0);

  static Weights stretch(const GemmTask& gemm, std::int64_t begin, std::int64_t end,
                         std::int64_t input, std::int64_t inputs, float* packed) {
    const QuantizedRows rows = QuantizedRows(gemm).from(begin);
    switch (gemm.format) {
      case WeightFormat::fp8:
        pack<WeightFormat::fp8>(gemm, rows, end - begin, input, inputs, packed);
        break;
      case WeightFormat::int8:
        pack<WeightFormat::int8>(gemm, rows, end - begin, input, inputs, packed);
        break;
      case WeightFormat::mxfp4:
        pack<WeightFormat::mxfp4>(gemm, rows, end - begin, input, inputs, packed);
        break;
      case WeightFormat::int4:
        pack<WeightFormat::int4>(gemm, rows, end - begin, input, inputs, packed);
        break;
      case WeightFormat::f32:
      case WeightFormat::bf16:
      case WeightFormat::f16: unexpected_format(gemm.format, "dequantizing blocks");
    }
    return {.data = packed,
            .stride = Multiply::kWeightStride * sizeof(float),
            .next = nullptr,
            .next_stride = 0,
            .fetch_begin = 0,
            .fetch_end = 0};
  }

 private:
  // Like pack_rows.
  template <WeightFormat kFormat>
  static void pack(const GemmTask& gemm, const QuantizedRows& rows, std::int64_t outputs,
                   std::int64_t input, std::int64_t inputs, float* packed) {
    constexpr std::int64_t kBlockInputs = block_inputs_of(kFormat);
    const std::int64_t first = input / kBlockInputs, count = divide_up(inputs, kBlockInputs);
    const int group_bits = __builtin_ctz(static_cast<unsigned>(gemm.group));
    std::int64_t o = 0;
    for (; o < outputs; ++o, packed += Multiply::kWeightStride) {
      const QuantizedRows row = rows.from(o);
      for (std::int64_t b = 0; b < count; ++b) {
        alignas(64) std::uint8_t values[kBlockInputs];
        order_bytes<kFormat>(row.values + (first + b) * kQuantizedBlockBytes, values);
        for (std::int64_t i = 0; i < kBlockInputs; i += Lanes::kCount) {
          const std::int64_t group = ((first + b) * kBlockInputs + i) >> group_bits;
          store(packed, b * kBlockInputs + i, dequantize<kFormat>(values + i, row.scales, group));
        }
      }
    }
    for (; o < divide_up(outputs, Multiply::kGroup) * Multiply::kGroup; ++o) {
      for (std::int64_t i = 0; i < count * kBlockInputs / Format::kPerStep; ++i) packed[i] = 0;
      packed += Multiply::kWeightStride;
    }
  }

  template <WeightFormat kFormat>
  static Lanes::Floats dequantize(const std::uint8_t* values, const std::byte* scales,
                                  std::int64_t group) {
    if constexpr (kFormat == WeightFormat::fp8) {
      float scale;
      __builtin_memcpy(&scale, scales + group * sizeof(scale), sizeof(scale));
      return BlockLanes::multiply(BlockLanes::fp8_numbers(values), Lanes::all(scale * 256));
    } else if constexpr (is_mxfp4(kFormat)) {
      return BlockLanes::multiply(
          BlockLanes::e2m1_numbers(values),
          Lanes::all(_mm_cvtss_f32(_mm_castsi128_ps(
              _mm_cvtsi32_si128(static_cast<int>(static_cast<unsigned>(scales[group]) << 23))))));
    } else {
      std::uint16_t both[2];
      __builtin_memcpy(both, scales + group * sizeof(both), sizeof(both));
      const int zero = kFormat == WeightFormat::int4 ? 8 : 128;
      return Lanes::multiply_add(BlockLanes::integer_numbers(values, zero),
                                 Lanes::all(_cvtsh_ss(both[0]) * kScaleUnit),
                                 Lanes::all(_cvtsh_ss(both[1]) * kScaleUnit));
    }
  }

  // Stores weights from `input` on, as dwords.
  static void store(float* packed, std::int64_t input, Lanes::Floats weights) {
    if constexpr (Format::kPerStep == 1) {
      Lanes::store(packed + input, weights);
    } else {
      Lanes::store(reinterpret_cast<Bf16*>(packed) + input, weights);
    }
  }
};

// Blocks of `Multiply` with quantized weights.
template <typename Multiply>
constexpr BlockKernels kQuantizedBlocks = kBlocks<Multiply, DequantizedWeights<Multiply>>;

inline const BlockKernels& choose_blocks(DType type) {
  switch (type) {
    case DType::f32: return kQuantizedBlocks<InRegisters<BlocksOfFloats<float>>>;
    case DType::bf16: return kQuantizedBlocks<InRegisters<BlocksOfFloats<Bf16>>>;
    default: return kQuantizedBlocks<InRegisters<BlocksOfFloats<F16>>>;
  }
}

}  // namespace
}  // namespace nvllm::kernels::cpu
