// Quantized weights as fragments of tensor-core operands, from the bytes that a thread of a quad
// holds of a block (kernels/gemm/quantized_weight.h), and their scales.
#pragma once

#include "kernels/common/sm80/types.cuh"
#include "kernels/gemm/quantized_weight.h"

namespace nvllm::kernels::cuda {

template <typename T>
inline constexpr bool kIsBf16 = sizeof(T) == 2;
template <>
inline constexpr bool kIsBf16<F16> = false;

// a · b + c of two 16-bit floats each.
template <typename T>
__device__ __forceinline__ unsigned multiply_add(unsigned a, unsigned b, unsigned c) {
  unsigned d;
  if constexpr (kIsBf16<T>) {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  } else {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  }
  return d;
}

// Two equal 16-bit floats.
__host__ __device__ constexpr unsigned twice(unsigned bits) {
  return bits << 16 | bits;
}
template <typename T>
inline constexpr unsigned kOnes = twice(kIsBf16<T> ? 0x3f80 : 0x3c00);

// (a & mask) | b in one instruction.
template <unsigned kMask>
__device__ __forceinline__ unsigned masked_or(unsigned a, unsigned b) {
  unsigned d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "n"(kMask), "r"(b));
  return d;
}

// Converts words of a thread's 16 bytes to pairs of T. A word has kSteps steps of 16 inputs; pairs
// 2 s and 2 s + 1 are a thread's fragment of step s: its inputs 2 t, 2 t + 1 and 2 t + 8, 2 t + 9;
// or, where that is cheaper, 2 t, 2 t + 8 and 2 t + 1, 2 t + 9: then x must be `crossed`, too. The
// results are exact: for fp8 the value / kUnit, for integers (integer - zero) + kAdded.
template <WeightFormat kFormat, typename T>
struct QuantizedValues;

template <typename T>
struct QuantizedValues<WeightFormat::fp8, T> {
  static constexpr int kSteps = 1;
  static constexpr float kAdded = 0;

  static constexpr float kUnit = kIsBf16<T> ? 0x1p120f : 0x1p8f;

  static __device__ __forceinline__ void unpack(unsigned word, unsigned (&pairs)[2]) {
    pairs[0] = values(word << 8, word << (8 - kShift)), pairs[1] = values(word, word >> kShift);
  }

 private:
  // Sign and magnitude move to their bit positions in T; this makes T's exponent smaller by a
  // constant. The smallest values become subnormal, which tensor cores multiply like others.
  static constexpr int kShift = kIsBf16<T> ? 4 : 1;
  static __device__ __forceinline__ unsigned values(unsigned in_high_bytes, unsigned shifted) {
    return masked_or<twice(0x8000)>(in_high_bytes, shifted & twice(0x7f00 >> kShift));
  }
};

template <typename T>
struct QuantizedValues<WeightFormat::int8, T> {
  static constexpr int kSteps = 1;
  static constexpr float kAdded = 0;

  static constexpr float kUnit = 1;

  static __device__ __forceinline__ void unpack(unsigned word, unsigned (&pairs)[2]) {
    const unsigned bytes = flipped(word);
    pairs[0] = values(bytes), pairs[1] = values(bytes >> 8);
  }

 private:
  static __device__ __forceinline__ unsigned flipped(unsigned word) {
    return kIsBf16<T> ? word ^ 0x80808080 : word;
  }
  // Two integers in the lower bytes; the other bytes are ignored.
  static __device__ __forceinline__ unsigned values(unsigned two) {
    if constexpr (kIsBf16<T>) {
      // The lower 7 bits are added to 128 as bits; then 256 is subtracted, or 128 with bit 7.
      return multiply_add<T>(masked_or<twice(0x007f)>(two, twice(0x4300)), kOnes<T>,
                             masked_or<twice(0x0080)>(two, twice(0xc300)));
    } else {
      return multiply_add<T>(masked_or<twice(0x00ff)>(two, twice(0x6400)), kOnes<T>,
                             twice(0xe480));  // 1024 + integer - 1152
    }
  }
};

template <typename T>
struct QuantizedValues<WeightFormat::int4, T> {
  static constexpr int kSteps = 2;
  // 128 + integer costs nothing in bfloat16. In float16 1024 + integer would cost precision.
  static constexpr float kAdded = kIsBf16<T> ? 136 : 0;
  static constexpr float kUnit = 1;

  static __device__ __forceinline__ void unpack(unsigned word, unsigned (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[i] = masked_or<twice(0x000f)>(word >> 4 * i, twice(kIsBf16<T> ? 0x4300 : 0x6400));
      if constexpr (!kIsBf16<T>) pairs[i] = multiply_add<T>(pairs[i], kOnes<T>, twice(0xe408));
    }
  }
};

template <typename T>
struct QuantizedValues<WeightFormat::mxfp4, T> {
  static constexpr int kSteps = 2;
  static constexpr float kAdded = 0;
  static constexpr float kUnit = kIsBf16<T> ? 0x1p126f : 0x1p14f;

  // As for fp8: sign and magnitude move to their bit positions in T.
  static __device__ __forceinline__ void unpack(unsigned word, unsigned (&pairs)[4]) {
    constexpr int kShift = kIsBf16<T> ? 6 : 9;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned magnitude = moved(word, kShift - 4 * i) & twice(0x7 << kShift);
      pairs[i] = masked_or<twice(0x8000)>(moved(word, 12 - 4 * i), magnitude);
    }
  }

 private:
  static __device__ __forceinline__ unsigned moved(unsigned word, int left) {
    return left < 0 ? word >> -left : word << left;
  }
};

template <WeightFormat kFormat>
inline constexpr bool kCrossed = !has_nibbles(kFormat);

// Rearranges two words of x, inputs 2 t, 2 t + 1 and 2 t + 8, 2 t + 9, in the `crossed` order.
__device__ __forceinline__ void cross(unsigned& first, unsigned& second) {
  const unsigned even = __byte_perm(first, second, 0x5410);
  second = __byte_perm(first, second, 0x7632);
  first = even;
}

template <WeightFormat kFormat>
inline constexpr int kBlockInputs = block_inputs_of(kFormat);

// A group's scale and offset, the factors of sums of values times x and of sums of x; 4096 times
// too large if they are stored in float16.
struct GroupScale {
  float scale, offset;
};
template <WeightFormat kFormat, typename T>
__device__ __forceinline__ GroupScale group_scale(unsigned bits) {
  if constexpr (kFormat == WeightFormat::fp8) {
    return {__uint_as_float(bits), 0};
  } else if constexpr (kFormat == WeightFormat::mxfp4) {
    return {__uint_as_float(bits << 23), 0};
  } else {
    static_assert(kFormat == WeightFormat::int8 || kFormat == WeightFormat::int4);
    const float scale = __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
    const float offset = __half2float(__ushort_as_half(static_cast<unsigned short>(bits >> 16)));
    return {scale, offset - QuantizedValues<kFormat, T>::kAdded * scale};
  }
}

// In bfloat16 the values of fp8 and mxfp4 are so small that x is scaled up, so that sums do not
// become subnormal. x itself must be below 2^63.
template <WeightFormat kFormat, typename T>
inline constexpr bool kEnlargesX = has_float_values(kFormat) && kIsBf16<T>;
__device__ __forceinline__ unsigned enlarged(unsigned pair) {
  return multiply_add<Bf16>(pair, twice(0x5f80), twice(0x8000));  // by 2^64
}

// A lane's words of x for a step of 16 inputs, in the form that these weights require.
template <WeightFormat kFormat, typename T>
__device__ __forceinline__ void arrange_step(unsigned (&step)[2]) {
  if constexpr (kEnlargesX<kFormat, T>) step[0] = enlarged(step[0]), step[1] = enlarged(step[1]);
  if constexpr (kCrossed<kFormat>) cross(step[0], step[1]);
}

// The factor of scaled sums.
template <WeightFormat kFormat, typename T>
inline constexpr float kSumUnit = (has_float_values(kFormat) ? 1.0f : kScaleUnit) *
                                  QuantizedValues<kFormat, T>::kUnit*(kEnlargesX<kFormat, T>
                                                                          ? 0x1p-64f
                                                                          : 1.0f);

}  // namespace nvllm::kernels::cuda
