// Few rows: dot products of weight rows with rows of x. Include after the Lanes of an instruction
// set.
//
// A format defines what is loaded at a step of the inputs, and how it is multiplied, one vector (a
// term of each lane) at a time:
//   Element, kStep (elements per step), kTerms (vectors per step),
//   Weights, load(from), load_part(from, count) (zero-padded), term(weights, i),
//   multiply_add(weight, x, sum).
// Rows of x are converted to these vectors first.
#pragma once

#include "kernels/gemm/cpu/gemm_kernels.h"

namespace nvllm::kernels::cpu {
namespace {

// Prefetches a cache line for writing. Taking a line over from other cores that have read it is
// slow, and stores wait for one line after the other; prefetches do not.
inline void fetch_to_write(const float* to) {
  __builtin_prefetch(to, 1);
}

template <typename T>
inline void store_rows(T* to, std::int64_t stride, std::int64_t rows, std::int64_t count,
                       const Lanes::Floats* values) {
  if (count == Lanes::kCount) {
    for (std::int64_t r = 0; r < rows; ++r) Lanes::store(to + r * stride, values[r]);
  } else {
    for (std::int64_t r = 0; r < rows; ++r) Lanes::store_part(to + r * stride, values[r], count);
  }
}

// Writes row-major sums of `rows` rows from `row` on and of `count` <= kCount outputs from `output`
// on, after adding bias and residual. The loops over rows are separate to keep each short.
template <typename T>
inline void finish(const GemmTask& gemm, std::int64_t row, std::int64_t rows, std::int64_t output,
                   std::int64_t count, Lanes::Floats* sums) {
  if (gemm.bias != nullptr) {
    const auto bias = Lanes::load_part(static_cast<const T*>(gemm.bias) + output, count);
    for (std::int64_t r = 0; r < rows; ++r) sums[r] = Lanes::add(sums[r], bias);
  }
  if (gemm.residual != nullptr) {
    const T* residual = static_cast<const T*>(gemm.residual) + row * gemm.residual_stride + output;
    for (std::int64_t r = 0; r < rows; ++r, residual += gemm.residual_stride) {
      sums[r] = Lanes::add(sums[r], Lanes::load_part(residual, count));
    }
  }
  const std::int64_t at = row * gemm.out_stride + output;
  if (gemm.out_f32) {
    store_rows(static_cast<float*>(gemm.out) + at, gemm.out_stride, rows, count, sums);
  } else {
    store_rows(static_cast<T*>(gemm.out) + at, gemm.out_stride, rows, count, sums);
  }
}

// The same for column-major sums: sums[output * stride + row]; at most kCount rows.
template <typename T>
inline void finish_columns(const GemmTask& gemm, const float* sums, std::int64_t stride,
                           std::int64_t row, std::int64_t rows, std::int64_t output,
                           std::int64_t count) {
  Lanes::Floats values[Lanes::kCount];
  for (int i = 0; i < Lanes::kCount; ++i) values[i] = Lanes::load(sums + i * stride);
  Lanes::transpose(values);
  finish<T>(gemm, row, rows, output, count, values);
}

template <typename T>
struct DotOfFloats {  // float32 and float16
  using Element = T;
  using Weights = Lanes::Floats;
  static constexpr int kStep = Lanes::kCount, kTerms = 1;

  static Weights load(const T* from) { return Lanes::load(from); }
  static Weights load_part(const T* from, std::int64_t count) {
    return Lanes::load_part(from, count);
  }
  static Lanes::Floats term(const Weights& weights, int) { return weights; }
  static Lanes::Floats multiply_add(Lanes::Floats weight, Lanes::Floats x, Lanes::Floats sum) {
    return Lanes::multiply_add(weight, x, sum);
  }
};

// bfloat16 without native instructions. A pair is split into two floats by a shift and a mask.
struct DotOfPairs {
  using Element = Bf16;
  struct Weights {
    Lanes::Floats first, second;
  };
  static constexpr int kStep = 2 * Lanes::kCount, kTerms = 2;

  static Weights split(Lanes::Floats pairs) {
    return {Lanes::first_of(pairs), Lanes::second_of(pairs)};
  }
  static Weights load(const Bf16* from) { return split(Lanes::load_pairs(from)); }
  static Weights load_part(const Bf16* from, std::int64_t count) {
    return split(Lanes::load_pairs_part(from, count));
  }
  static Lanes::Floats term(const Weights& weights, int i) {
    return i == 0 ? weights.first : weights.second;
  }
  static Lanes::Floats multiply_add(Lanes::Floats weight, Lanes::Floats x, Lanes::Floats sum) {
    return Lanes::multiply_add(weight, x, sum);
  }
};

// The number of elements in the step at an input, of `inputs` in total.
template <typename Format>
inline typename Format::Weights load_step(const typename Format::Element* from,
                                          std::int64_t inputs) {
  return inputs >= Format::kStep ? Format::load(from) : Format::load_part(from, inputs);
}

template <typename Format>
struct Dot {
  using T = typename Format::Element;
  static constexpr int kRows = Lanes::kAccumulators / 3;  // at once
  static constexpr int kSums = GemmKernels::kDotOutputs;
  static constexpr int kLineFloats = 16;
  static constexpr int kGroupRows = 8;  // max. weight rows that are read at once
  static constexpr int kStepFloats = Format::kTerms * Lanes::kCount;  // per step of a converted row

  static std::int64_t row_floats(std::int64_t inputs) {
    return (inputs + Format::kStep - 1) / Format::kStep * kStepFloats;
  }

  static void prepare(const GemmTask& gemm, std::int64_t first_row, int rows, std::int64_t begin,
                      std::int64_t end, float* prepared) {
    const T* from = static_cast<const T*>(gemm.x) + first_row * gemm.x_stride;
    static_assert(GemmKernels::kPrepareInputs % Format::kStep == 0);
    for (int row = 0; row < rows; ++row, from += gemm.x_stride) {
      float* to = prepared + row * row_floats(gemm.inputs) + row_floats(begin);
      for (std::int64_t i = 0; i < row_floats(end - begin); i += kLineFloats)
        fetch_to_write(to + i);
      for (std::int64_t i = begin; i < end; i += Format::kStep) {
        const auto step = load_step<Format>(from + i, end - i);
        for (int term = 0; term < Format::kTerms; ++term, to += Lanes::kCount)
          Lanes::store(to, Format::term(step, term));
      }
    }
  }

  // For one row of x, weight rows shorter than a page are read one after the other, as one stream:
  // several at once would share a page, where processors that prefetch one stream per page read
  // half as fast. Longer rows are read several at once, as one stream in each of several pages,
  // which is faster.
  static constexpr std::int64_t kPageBytes = 4096;
  static bool one_stream(int rows, std::int64_t inputs) {
    return rows == 1 && inputs * static_cast<std::int64_t>(sizeof(T)) < kPageBytes;
  }

  // Unrolled by hand: with a loop over the terms 16 rows of bfloat16 took 7% more time.
  static void add_step(const typename Format::Weights& weights, const float* x,
                       Lanes::Floats& sum) {
    static_assert(Format::kTerms <= 2);
    sum = Format::multiply_add(Format::term(weights, 0), Lanes::load(x), sum);
    if constexpr (Format::kTerms == 2)
      sum = Format::multiply_add(Format::term(weights, 1), Lanes::load(x + Lanes::kCount), sum);
  }

  // Sums of kOutputs outputs with kR rows of x, to sums[row * kSums + output]: several, so that a
  // load of x serves several weights and additions need not wait for each other. To read the memory
  // in one long stream nevertheless, each line of weights prefetches the line `prefetch` elements
  // further on.
  template <int kR, int kOutputs>
  static void group(const T* weight, std::int64_t inputs, std::int64_t prefetch, const float* x,
                    std::int64_t x_stride, float* sums) {
    Lanes::Floats sum[kOutputs][kR];
    for (int o = 0; o < kOutputs; ++o) {
      for (int r = 0; r < kR; ++r) sum[o][r] = Lanes::zero();
    }
    std::int64_t i = 0;
    for (; i + Format::kStep <= inputs; i += Format::kStep, x += kStepFloats) {
      typename Format::Weights weights[kOutputs];
      for (int o = 0; o < kOutputs; ++o) {
        const T* from = weight + o * inputs + i;
        weights[o] = Format::load(from);
        _mm_prefetch(from + prefetch, _MM_HINT_T1);
      }
      for (int r = 0; r < kR; ++r) {
        for (int o = 0; o < kOutputs; ++o) {
          add_step(weights[o], x + r * x_stride, sum[o][r]);
        }
      }
    }
    if (i < inputs) {
      for (int o = 0; o < kOutputs; ++o) {
        const auto weights = Format::load_part(weight + o * inputs + i, inputs - i);
        for (int r = 0; r < kR; ++r) {
          add_step(weights, x + r * x_stride, sum[o][r]);
        }
      }
    }
    for (int o = 0; o < kOutputs; ++o) {
      for (int r = 0; r < kR; ++r) sums[r * kSums + o] = Lanes::sum(sum[o][r]);
    }
  }

  // The same for `count` outputs: one by one, or in groups that fill the registers.
  template <int kR>
  static void outputs(const T* weight, std::int64_t inputs, std::int64_t prefetch, const float* x,
                      std::int64_t x_stride, std::int64_t count, float* sums) {
    constexpr int kFit = Lanes::kAccumulators / kR;
    constexpr int kGroup = kFit < 4 ? kFit : kFit < kGroupRows ? 4 : kGroupRows;
    const std::int64_t grouped = one_stream(kR, inputs) ? 0 : count;
    std::int64_t o = 0;
    for (; o + kGroup <= grouped; o += kGroup) {
      group<kR, kGroup>(weight + o * inputs, inputs, prefetch, x, x_stride, sums + o);
    }
    for (; o < count; ++o) {
      group<kR, 1>(weight + o * inputs, inputs, prefetch, x, x_stride, sums + o);
    }
  }

  static void rows(int rows, const T* weight, std::int64_t inputs, std::int64_t prefetch,
                   const float* x, std::int64_t x_stride, std::int64_t count, float* sums) {
    switch (rows) {
      case 1: return outputs<1>(weight, inputs, prefetch, x, x_stride, count, sums);
      case 2: return outputs<2>(weight, inputs, prefetch, x, x_stride, count, sums);
      case 3: return outputs<3>(weight, inputs, prefetch, x, x_stride, count, sums);
      case 4: return outputs<4>(weight, inputs, prefetch, x, x_stride, count, sums);
    }
    if constexpr (kRows == 8) {
      switch (rows) {
        case 5: return outputs<5>(weight, inputs, prefetch, x, x_stride, count, sums);
        case 6: return outputs<6>(weight, inputs, prefetch, x, x_stride, count, sums);
        case 7: return outputs<7>(weight, inputs, prefetch, x, x_stride, count, sums);
        case 8: return outputs<8>(weight, inputs, prefetch, x, x_stride, count, sums);
      }
    }
  }

  // Half a page for one stream; otherwise whole groups of rows, at least a page. 0 near the end,
  // where it would prefetch weights of other threads.
  static std::int64_t prefetch_distance(const GemmTask& gemm, int rows, std::int64_t output) {
    const std::int64_t row_bytes = gemm.inputs * static_cast<std::int64_t>(sizeof(T));
    if (row_bytes == 0) return 0;
    const bool single = one_stream(rows, gemm.inputs);
    const std::int64_t bytes = single ? kPageBytes / 2 : kPageBytes;
    const std::int64_t unit = single ? 1 : kGroupRows;
    const std::int64_t count = (bytes + unit * row_bytes - 1) / (unit * row_bytes) * unit;
    if (output + kSums + count > gemm.outputs) return 0;
    return single ? bytes / static_cast<std::int64_t>(sizeof(T)) : count * gemm.inputs;
  }

  static void run(const GemmTask& gemm, std::int64_t first_row, int row_count,
                  const float* prepared, std::int64_t begin, std::int64_t end) {
    const std::int64_t x_stride = row_floats(gemm.inputs);
    // Split rows as evenly as possible, so that none is left alone.
    const int passes = (row_count + kRows - 1) / kRows;
    for (std::int64_t o = begin; o < end; o += kSums) {
      const std::int64_t count = end - o < kSums ? end - o : kSums;
      const T* weight = static_cast<const T*>(gemm.weight) + o * gemm.inputs;
      const std::int64_t prefetch = prefetch_distance(gemm, row_count, o);
      alignas(64) float sums[GemmKernels::kMaxDotRows * kSums];
      for (int pass = 0; pass < passes; ++pass) {
        const int from = row_count * pass / passes, to = row_count * (pass + 1) / passes;
        rows(to - from, weight, gemm.inputs, prefetch, prepared + from * x_stride, x_stride, count,
             sums + from * kSums);
      }
      for (int r = 0; r < row_count; ++r) {
        for (std::int64_t lane = 0; lane < count; lane += Lanes::kCount) {
          const std::int64_t left = count - lane;
          Lanes::Floats values = Lanes::load(sums + r * kSums + lane);
          finish<T>(gemm, first_row + r, 1, o + lane, left < Lanes::kCount ? left : Lanes::kCount,
                    &values);
        }
      }
    }
  }
};

}  // namespace
}  // namespace nvllm::kernels::cpu
