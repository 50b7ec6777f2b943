// The gated activation of 16-byte vectors on the GPU, shared by the operation itself and the
// epilogues of GEMMs.
#pragma once

#include "kernels/common/sm80/types.cuh"
#include "kernels/pointwise/elementwise.h"

namespace nvllm::kernels::cuda {

// e^x and quotients: in float32 precision or, if the result is rounded to 16 bits, with the fast
// hardware approximations.
template <typename T>
__device__ __forceinline__ float exponential(float x) {
  return sizeof(T) == 4 ? expf(x) : __expf(x);
}

template <typename T>
__device__ __forceinline__ float quotient(float a, float b) {
  return sizeof(T) == 4 ? __fdiv_rn(a, b) : __fdividef(a, b);
}

template <typename T, Activation kActivation>
__device__ __forceinline__ float activate(float g) {
  if constexpr (kActivation == Activation::gelu) return g * normcdff(g);
  float minus = -g;
  if constexpr (kActivation == Activation::gelu_tanh) {
    // (1 + tanh(z)) / 2 = 1 / (1 + e^-2z)
    minus = minus * 1.5957691216f * fmaf(g * g, 0.044715f, 1.0f);
  }
  return quotient<T>(g, 1.0f + exponential<T>(minus));
}

// Activation::clamped_swiglu of a gate and an up value. Comparisons keep NaN.
template <typename T>
__device__ __forceinline__ float clamped_swiglu(float gate, float up, float limit) {
  const float g = gate > limit ? limit : gate;
  up = up > limit ? limit : up;
  up = up < -limit ? -limit : up;
  const float open = quotient<T>(g, 1.0f + exponential<T>(-kClampedSwigluAlpha * g));
  return __fmul_rn(open, up + 1.0f);
}

// activation(gates) * ups, element by element, rounded once.
template <Activation kActivation, typename T>
__device__ __forceinline__ Vector<T> activate_gated(const Vector<T>& gates, const Vector<T>& ups) {
  Floats<T> values = widen(gates);
  const Floats<T> factors = widen(ups);
#pragma unroll
  for (int i = 0; i < Vector<T>::kElements; ++i) {
    values.element[i] = __fmul_rn(activate<T, kActivation>(values.element[i]), factors.element[i]);
  }
  return narrow(values);
}

}  // namespace nvllm::kernels::cuda
