// E4m3 (device/e4m3.h) on the GPU. Where the GPU has no instruction for it (before Ada), the
// conversions are made of integer operations, with the same results.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "device/e4m3.h"
#include "kernels/common/sm80/types.cuh"

namespace nvllm::kernels {

// Two floats, rounded to nearest, ties to even; larger ones become 448. The first is the lower
// byte.
__device__ __forceinline__ unsigned short narrow_to_e4m3(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

template <>
__device__ __forceinline__ E4m3 narrow<E4m3>(float value) {
  return {__nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3)};
}

// The E4m3 in the lower 16 bits of a word, as float16 in the same order. Exact; a NaN stays one.
__device__ __forceinline__ unsigned widen_e4m3_to_half(unsigned pair) {
#if __CUDA_ARCH__ >= 890
  unsigned halves;
  asm("{.reg .b16 pair, high;\n mov.b32 {pair, high}, %1;\n cvt.rn.f16x2.e4m3x2 %0, pair;}"
      : "=r"(halves)
      : "r"(pair));
  return halves;
#else
  // In place the exponent is 8 less than a float16's.
  const unsigned spread = __byte_perm(pair, 0, 0x1404);  // each byte above a byte of zeros
  unsigned halves = (spread & 0x80008000u) | (spread >> 1 & 0x3f803f80u);
  const __half2 factor = __float2half2_rn(256.0f);
  const __half2 value = __hmul2(*reinterpret_cast<const __half2*>(&halves), factor);
  halves = *reinterpret_cast<const unsigned*>(&value);
  if ((pair & 0x7fu) == 0x7f) halves |= 0x7e00u;
  if ((pair & 0x7f00u) == 0x7f00) halves |= 0x7e000000u;
  return halves;
#endif
}

// The four E4m3 of a word: `low` gets its lower two as float16, `high` the upper two.
__device__ __forceinline__ void widen_e4m3_to_half(unsigned word, unsigned& low, unsigned& high) {
#if __CUDA_ARCH__ >= 890
  asm("{.reg .b16 lower, upper;\n mov.b32 {lower, upper}, %2;\n"
      " cvt.rn.f16x2.e4m3x2 %0, lower;\n cvt.rn.f16x2.e4m3x2 %1, upper;}"
      : "=r"(low), "=r"(high)
      : "r"(word));
#else
  low = widen_e4m3_to_half(word & 0xffffu);
  high = widen_e4m3_to_half(word >> 16);
#endif
}

__device__ __forceinline__ float widen(E4m3 value) {
  const unsigned halves = widen_e4m3_to_half(value.bits);
  return __half2float(__ushort_as_half(static_cast<unsigned short>(halves)));
}

}  // namespace nvllm::kernels
