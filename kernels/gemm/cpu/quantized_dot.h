// Few rows by quantized weights: dot products of a weight's blocks in memory order with rows of x
// in the same order. Include after the lanes of an instruction set (quantized_lanes_*.h).
//
// If x may be quantized, the terms are integers: a dword's terms belong to one group of the weight
// and of x, so their sum is converted to a float and multiplied by both scales. Otherwise weights
// are dequantized in registers.
#pragma once

#include "kernels/gemm/cpu/gemm_blocks.h"
#include "kernels/gemm/cpu/quantized_activations.h"

namespace nvllm::kernels::cpu {
namespace {

constexpr bool is_mxfp4(WeightFormat format) {
  return format == WeightFormat::mxfp4;
}

// Rows of a quantized weight in memory.
struct QuantizedRows {
  const std::byte *values, *scales;
  std::int64_t blocks, row_bytes, scale_bytes;  // of a row

  explicit QuantizedRows(const GemmTask& gemm)
      : values(static_cast<const std::byte*>(gemm.weight)),
        scales(static_cast<const std::byte*>(gemm.scales)) {
    const std::int64_t inputs = block_inputs_of(gemm.format);
    blocks = (gemm.inputs + inputs - 1) / inputs;
    row_bytes = blocks * kQuantizedBlockBytes;
    scale_bytes = (gemm.inputs + 127) / 128 * 128 / gemm.group * (is_mxfp4(gemm.format) ? 1 : 4);
  }
  QuantizedRows from(std::int64_t output) const {
    QuantizedRows rows = *this;
    rows.values += output * row_bytes;
    rows.scales += output * scale_bytes;
    return rows;
  }
};

// The dot products of integers. `Of`: Integers, or a type with the same members.
template <WeightFormat kFormat, typename Of = Integers<kFormat>>
struct IntegerTerms {
  static constexpr int kPairBytes = 4;
  static constexpr int kParts = kFormat == WeightFormat::int4 ? 2 : 1;
  using Block = QuantizedActivations<kParts>;
  static constexpr auto prepare = quantize_activations<kParts, Of::kZero>;
  static constexpr auto row_floats = quantized_activation_floats<kParts>;
  static constexpr std::int64_t kBlockFloats = sizeof(Block) / sizeof(float);
  static constexpr auto kFetchHint = _MM_HINT_T1;

  // Adds a block's dot product with row r of x to sums[r]. kPairs: scales and offsets of the block.
  template <int kPairs, int kR>
  static void add(const std::byte* values, const std::byte* scales, const float* x,
                  std::int64_t x_stride, Lanes::Floats (&sums)[kR]) {
    const Of weights(values);
    const Lanes::Floats both = BlockLanes::load_scales<kPairs>(scales);
    const Lanes::Floats scale = BlockLanes::spread<kPairs, 0>(both);
    for (int r = 0; r < kR; ++r) {
      const Block& block = *reinterpret_cast<const Block*>(x + r * x_stride);
      const Lanes::Floats terms = BlockLanes::to_floats(weights.dot(block.integers));
      const Lanes::Floats factor =
          BlockLanes::multiply(scale, BlockLanes::repeat_four(block.scales));
      sums[r] = Lanes::multiply_add(both, BlockLanes::load_eight(block.sums), sums[r]);
      sums[r] = Lanes::multiply_add(terms, factor, sums[r]);
    }
  }
};

// The dot products of floats. `Of`: Numbers, or a type with the same members. If weights are
// integers, x has been multiplied by kScaleUnit.
template <WeightFormat kFormat, typename Of = Numbers<kFormat>>
struct FloatTerms {
  static constexpr int kPairBytes = 4;
  static constexpr auto prepare = order_activations<kFormat>;
  static constexpr auto row_floats = float_activation_floats<kFormat>;
  static constexpr std::int64_t kBlockFloats = block_inputs_of(kFormat);
  // Fetches go into a closer cache than for integers: a block takes many instructions, so few
  // blocks are in flight.
  static constexpr auto kFetchHint = _MM_HINT_T0;

  template <int kPairs, int kR>
  static void add(const std::byte* values, const std::byte* scales, const float* x,
                  std::int64_t x_stride, Lanes::Floats (&sums)[kR]) {
    const Of numbers(values);
    const Lanes::Floats both = BlockLanes::load_scales<kPairs>(scales);
    const Lanes::Floats scale = BlockLanes::spread<kPairs, 0>(both);
    const Lanes::Floats offset = BlockLanes::spread<kPairs, 1>(both);
    for (int v = 0; v < Of::kVectors; ++v) {
      const Lanes::Floats weights = Lanes::multiply_add(numbers.get(v), scale, offset);
      for (int r = 0; r < kR; ++r)
        sums[r] = Lanes::multiply_add(weights, Lanes::load(x + r * x_stride + v * Lanes::kCount),
                                      sums[r]);
    }
  }
};

// Adds a block's values times rows of x, with a scale per lane, to the rows' sums.
template <typename Of, int kR>
inline void add_scaled(const Of& numbers, const Lanes::Floats& scale, const float* x,
                       std::int64_t x_stride, Lanes::Floats (&sums)[kR]) {
  Lanes::Floats terms[kR];
  for (Lanes::Floats& of_row : terms) of_row = Lanes::zero();
  for (int v = 0; v < Of::kVectors; ++v) {
    const Lanes::Floats weights = numbers.get(v);
    for (int r = 0; r < kR; ++r) {
      const Lanes::Floats xs = Lanes::load(x + r * x_stride + v * Lanes::kCount);
      terms[r] = Lanes::multiply_add(weights, xs, terms[r]);
    }
  }
  for (int r = 0; r < kR; ++r) sums[r] = Lanes::multiply_add(terms[r], scale, sums[r]);
}

// fp8: a block has one scale and no offset.
template <typename Of>
struct FloatTerms<WeightFormat::fp8, Of> {
  static constexpr int kPairBytes = 4;
  static constexpr auto prepare = order_activations<WeightFormat::fp8>;
  static constexpr auto row_floats = float_activation_floats<WeightFormat::fp8>;
  static constexpr std::int64_t kBlockFloats = block_inputs_of(WeightFormat::fp8);
  static constexpr auto kFetchHint = _MM_HINT_T0;

  template <int, int kR>
  static void add(const std::byte* values, const std::byte* scales, const float* x,
                  std::int64_t x_stride, Lanes::Floats (&sums)[kR]) {
    const Of numbers(values);
    float of_group;
    __builtin_memcpy(&of_group, scales, sizeof(of_group));
    const Lanes::Floats scale = Lanes::all(of_group * Of::kFactor);
    add_scaled(numbers, scale, x, x_stride, sums);
  }
};

// mxfp4: each dword of a thread's four has its own one-byte scale.
template <typename Of>
struct FloatTerms<WeightFormat::mxfp4, Of> {
  static constexpr int kPairBytes = 1;
  static constexpr auto prepare = order_activations<WeightFormat::mxfp4>;
  static constexpr auto row_floats = float_activation_floats<WeightFormat::mxfp4>;
  static constexpr std::int64_t kBlockFloats = block_inputs_of(WeightFormat::mxfp4);
  static constexpr auto kFetchHint = _MM_HINT_T0;

  template <int, int kR>
  static void add(const std::byte* values, const std::byte* scales, const float* x,
                  std::int64_t x_stride, Lanes::Floats (&sums)[kR]) {
    const Of numbers(values);
    const Lanes::Floats scale = BlockLanes::load_powers(scales);
    add_scaled(numbers, scale, x, x_stride, sums);
  }
};

template <int kN>
struct Constant {
  static constexpr int value = kN;
};

// Calls `run` with a Constant, the number of scales in a block, 4, 2 or 1, and with the number of
// blocks that share them.
template <typename Run>
inline void with_pairs(const GemmTask& gemm, Run&& run) {
  const int inputs = block_inputs_of(gemm.format);
  switch (inputs / gemm.group) {
    case 4: return run(Constant<4>(), 1);
    case 2: return run(Constant<2>(), 1);
    case 1: return run(Constant<1>(), 1);
    default: return run(Constant<1>(), 2);
  }
}

template <typename Terms>
struct QuantizedDot {
  static constexpr int kMaxRows = 4;  // at a time
  static constexpr int kSums = DotKernels::kDotOutputs;

  static std::int64_t row_floats(std::int64_t inputs) { return Terms::row_floats(inputs); }

  static void prepare(const GemmTask& gemm, std::int64_t first_row, int rows, std::int64_t begin,
                      std::int64_t end, float* prepared) {
    Terms::prepare(gemm, first_row, rows, begin, end, prepared);
  }

  static void run(const GemmTask& gemm, std::int64_t first_row, int row_count,
                  const float* prepared, std::int64_t begin, std::int64_t end) {
    const QuantizedRows weight(gemm);
    const std::int64_t x_stride = row_floats(gemm.inputs);
    const int passes = (row_count + kMaxRows - 1) / kMaxRows;
    for (std::int64_t o = begin; o < end; o += kSums) {
      const std::int64_t count = end - o < kSums ? end - o : kSums;
      alignas(64) float sums[DotKernels::kMaxDotRows * kSums];
      for (int pass = 0; pass < passes; ++pass) {
        const int from = row_count * pass / passes, to = row_count * (pass + 1) / passes;
        // The first pass reads weights from memory.
        const bool fetch = pass == 0 && o + kSums + kFetchBytes / weight.row_bytes < gemm.outputs;
        some_rows(gemm, to - from, weight.from(o), fetch ? kFetchBytes : 0,
                  prepared + from * x_stride, x_stride, count, sums + from * kSums);
      }
      finish_sums(gemm, first_row, row_count, o, count, sums);
    }
  }

 private:
  // Rows are contiguous, and several are read at once; to read memory in one stream nevertheless,
  // lines are prefetched in memory order, this far ahead.
  static constexpr std::int64_t kFetchBytes = 4096;

  static void some_rows(const GemmTask& gemm, int rows, const QuantizedRows& weight,
                        std::int64_t fetch, const float* x, std::int64_t x_stride,
                        std::int64_t count, float* sums) {
    with_pairs(gemm, [&](auto pairs, int share) {
      constexpr int kPairs = decltype(pairs)::value;
      switch (rows) {
        case 1: return outputs<kPairs, 1>(weight, share, fetch, x, x_stride, count, sums);
        case 2: return outputs<kPairs, 2>(weight, share, fetch, x, x_stride, count, sums);
        case 3: return outputs<kPairs, 3>(weight, share, fetch, x, x_stride, count, sums);
        default: return outputs<kPairs, 4>(weight, share, fetch, x, x_stride, count, sums);
      }
    });
  }

  // Sums of `count` outputs with kR rows of x, to sums[row * kSums + output].
  template <int kPairs, int kR>
  static void outputs(const QuantizedRows& weight, int share, std::int64_t fetch, const float* x,
                      std::int64_t x_stride, std::int64_t count, float* sums) {
    constexpr int kOutputs = kR * 4 > Lanes::kAccumulators ? 2 : 4;
    std::int64_t o = 0;
    for (; o + kOutputs <= count; o += kOutputs)
      group<kPairs, kR, kOutputs>(weight.from(o), share, fetch, x, x_stride, sums + o);
    for (; o < count; ++o)
      group<kPairs, kR, 1>(weight.from(o), share, fetch, x, x_stride, sums + o);
  }

  template <int kPairs, int kR, int kOutputs>
  static void group(const QuantizedRows& weight, int share, std::int64_t fetch, const float* x,
                    std::int64_t x_stride, float* sums) {
    const std::byte* next = weight.values + fetch;
    constexpr int kScaleBytes = kPairs * Terms::kPairBytes;  // of a block
    const std::byte* next_scales =
        weight.scales + fetch / kQuantizedBlockBytes / share * kScaleBytes;
    Lanes::Floats sum[4][kR];
    for (int o = 0; o < 4; ++o) {
      for (int r = 0; r < kR; ++r) sum[o][r] = Lanes::zero();
    }
    for (std::int64_t b = 0; b < weight.blocks; ++b, x += Terms::kBlockFloats) {
      const std::byte* const values = weight.values + b * kQuantizedBlockBytes;
      const std::byte* const scales = weight.scales + b / share * kScaleBytes;
      _mm_prefetch(next_scales + b / share * kScaleBytes * kOutputs, _MM_HINT_T1);
      for (int o = 0; o < kOutputs; ++o) {
        _mm_prefetch(next, Terms::kFetchHint);
        next += kQuantizedBlockBytes;
        Terms::template add<kPairs, kR>(values + o * weight.row_bytes,
                                        scales + o * weight.scale_bytes, x, x_stride, sum[o]);
      }
    }
    for (int r = 0; r < kR; ++r) {
      const __m128 all = BlockLanes::sum4(sum[0][r], sum[1][r], sum[2][r], sum[3][r]);
      alignas(16) float four[4];
      _mm_store_ps(four, all);
      for (int o = 0; o < kOutputs; ++o) sums[r * kSums + o] = four[o];
    }
  }

  static void finish_sums(const GemmTask& gemm, std::int64_t first_row, int rows, std::int64_t o,
                          std::int64_t count, const float* sums) {
    for (int r = 0; r < rows; ++r) {
      for (std::int64_t lane = 0; lane < count; lane += Lanes::kCount) {
        const std::int64_t left = count - lane;
        Lanes::Floats values = Lanes::load(sums + r * kSums + lane);
        const std::int64_t some = left < Lanes::kCount ? left : Lanes::kCount;
        switch (gemm.dtype) {
          case DType::f32: finish<float>(gemm, first_row + r, 1, o + lane, some, &values); break;
          case DType::bf16: finish<Bf16>(gemm, first_row + r, 1, o + lane, some, &values); break;
          default: finish<F16>(gemm, first_row + r, 1, o + lane, some, &values);
        }
      }
    }
  }
};

inline const DotKernels& choose_dots(const GemmTask& gemm) {
  switch (gemm.format) {
    case WeightFormat::fp8: return kDots<QuantizedDot<FloatTerms<WeightFormat::fp8>>>;
    case WeightFormat::mxfp4: return kDots<QuantizedDot<FloatTerms<WeightFormat::mxfp4>>>;
    case WeightFormat::int8:
      return gemm.weight_only ? kDots<QuantizedDot<FloatTerms<WeightFormat::int8>>>
                              : kDots<QuantizedDot<IntegerTerms<WeightFormat::int8>>>;
    case WeightFormat::int4:
      return gemm.weight_only ? kDots<QuantizedDot<FloatTerms<WeightFormat::int4>>>
                              : kDots<QuantizedDot<IntegerTerms<WeightFormat::int4>>>;
    case WeightFormat::f32:
    case WeightFormat::bf16:
    case WeightFormat::f16: break;
  }
  unexpected_format(gemm.format, "choosing dot products");
}

}  // namespace
}  // namespace nvllm::kernels::cpu
