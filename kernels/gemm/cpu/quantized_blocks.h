// Many rows by quantized weights: a block's weights are dequantized to the floats that the blocks
// of an instruction set multiply (gemm_blocks.h), once for all rows of the block.
#pragma once

#include "kernels/gemm/cpu/gemm_blocks.h"
#include "kernels/gemm/cpu/quantized_dot.h"

namespace nvllm::kernels::cpu {
namespace {

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
      default: pack<WeightFormat::int4>(gemm, rows, end - begin, input, inputs, packed);
    }
    return {.data = packed,
            .stride = Multiply::kWeightStride * sizeof(float),
            .next = nullptr,
            .next_stride = 0,
            .fetch_begin = 0,
            .fetch_end = 0};
  }

 private:
  // As pack_rows.
  template <WeightFormat kFormat>
  static void pack(const GemmTask& gemm, const QuantizedRows& rows, std::int64_t outputs,
                   std::int64_t input, std::int64_t inputs, float* packed) {
    constexpr std::int64_t kBlockInputs = FloatTerms<kFormat>::kBlockFloats;
    const std::uint8_t* const places = float_places(kFormat);
    const std::int64_t first = input / kBlockInputs, count = divide_up(inputs, kBlockInputs);
    std::int64_t o = 0;
    with_pairs(gemm, [&](auto pairs, int share) {
      constexpr int kPairs = decltype(pairs)::value;
      for (; o < outputs; ++o, packed += Multiply::kWeightStride) {
        const QuantizedRows row = rows.from(o);
        for (std::int64_t b = 0; b < count; ++b) {
          alignas(64) float weights[kBlockInputs];
          FloatTerms<kFormat>::template dequantize<kPairs>(
              row.values + (first + b) * kQuantizedBlockBytes,
              row.scales + (first + b) / share * kPairs * 4, [&](int v, Lanes::Floats values) {
                if constexpr (kFormat != WeightFormat::fp8)
                  values = BlockLanes::multiply(values, Lanes::all(kScaleUnit));
                Lanes::store(weights + v * Lanes::kCount, values);
              });
          store(weights, places, kBlockInputs, packed + b * kBlockInputs / Format::kPerStep);
        }
      }
    });
    for (; o < divide_up(outputs, Multiply::kGroup) * Multiply::kGroup; ++o) {
      for (std::int64_t i = 0; i < divide_up(count * kBlockInputs, Format::kPerStep); ++i)
        packed[i] = 0;
      packed += Multiply::kWeightStride;
    }
  }

  // A block's weights in the order of the inputs, as dwords.
  static void store(const float* weights, const std::uint8_t* places, std::int64_t count,
                    float* to) {
    if constexpr (Format::kPerStep == 1) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = weights[places[i]];
    } else {
      alignas(64) float ordered[kUnitInputs];
      for (std::int64_t i = 0; i < count; ++i) ordered[i] = weights[places[i]];
      for (std::int64_t i = 0; i < count; i += Lanes::kCount)
        Lanes::store(reinterpret_cast<Bf16*>(to) + i, Lanes::load(ordered + i));
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
