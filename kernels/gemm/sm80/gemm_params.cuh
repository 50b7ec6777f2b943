// GEMM kernel parameters, and shared helpers that read weights and store results.
#pragma once

#include "kernels/common/sm80/launch.cuh"
#include "kernels/common/sm80/types.cuh"
#include "kernels/gemm/gemm_steps.h"

namespace nvllm::kernels::cuda {

template <typename T>
struct GemmParams {
  void* out;  // float if float_out, otherwise T
  const T* x;
  const T* weight;
  const T* bias;         // nullptr: none
  const T* residual;     // nullptr: none
  const T* norm_weight;  // of a fused prologue; nullptr: none
  long long out_stride, x_stride, residual_stride;
  int rows, outputs, inputs;  // outputs: columns of out; a gated weight has twice as many
  bool float_out;
  float inverse_inputs, epsilon;

  // Takes a checked call.
  explicit GemmParams(const GemmCall& call) {
    const TensorView to = out_of(call), from = x_of(call);
    const auto& prologue = call.operands.prologue;
    out = to.data;
    x = from.as<T>();
    weight = call.weight.values.as<T>();
    bias = call.weight.bias.as<T>();
    residual = call.operands.residual.as<T>();
    norm_weight = is_normed(call) ? prologue.norm_weight.as<T>() : nullptr;
    out_stride = to.stride[0];
    x_stride = from.stride[0];
    residual_stride = call.operands.residual.stride[0];
    rows = static_cast<int>(to.shape[0]);
    outputs = static_cast<int>(to.shape[1]);
    inputs = static_cast<int>(call.weight.inputs());
    float_out = to.dtype == DType::f32;
    inverse_inputs = 1.0f / static_cast<float>(inputs);
    epsilon = prologue.epsilon;
  }
};

// Weights are read once, bypassing the L1. Zeros if not `inside`.
template <typename T>
__device__ __forceinline__ Vector<T> load_weights(const T* address, bool inside) {
  Vector<T> v;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@p ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
      : "l"(address), "r"(static_cast<int>(inside)));
  return v;
}

// The residual of an element of the result.
template <typename T>
__device__ __forceinline__ float residual_of(const GemmParams<T>& p, int row, int output) {
  return p.residual == nullptr ? 0 : widen(p.residual[row * p.residual_stride + output]);
}

// One element of the result, from its sum and residual_of() it.
template <typename T>
__device__ __forceinline__ void store_output(const GemmParams<T>& p, int row, int output, float sum,
                                             float residual) {
  if (p.bias != nullptr) sum += widen(p.bias[output]);
  if (p.residual != nullptr) sum += residual;
  if (p.float_out) {
    static_cast<float*>(p.out)[row * p.out_stride + output] = sum;
  } else {
    static_cast<T*>(p.out)[row * p.out_stride + output] = narrow<T>(sum);
  }
}

}  // namespace nvllm::kernels::cuda
