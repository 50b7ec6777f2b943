// A Linear as the kernels of this folder take it.
#pragma once

#include "kernels/gemm/linear.h"

namespace nvllm::kernels::cuda {

inline bool is_gated(const Linear& args) {
  return args.after == Linear::After::gated_activation;
}

// Whether all rows are vectors of 16 bytes, of 16-bit floats, at multiples of their size.
inline bool whole_vectors(const TensorView& tensor) {
  const bool rows_aligned = tensor.rank == 1 || tensor.shape[0] <= 1 || tensor.stride[0] % 8 == 0;
  return tensor.aligned(16) && tensor.shape[tensor.rank - 1] % 8 == 0 && rows_aligned;
}

template <typename T>
struct LinearParams {
  void* out;  // float with float_out, else T
  const T* x;
  const T* weight;
  const T* bias;         // nullptr: none
  const T* residual;     // nullptr: none
  const T* norm_weight;  // nullptr: no norm
  long long out_stride, x_stride, residual_stride;
  int rows, outputs, inputs;
  bool float_out;
  float inverse_inputs, epsilon;

  // Of checked arguments. Before an activation, x has 2 * inputs columns.
  explicit LinearParams(const Linear& args)
      : out(args.out.data),
        x(args.x.as<T>()),
        weight(args.weight.as<T>()),
        bias(args.bias.as<T>()),
        residual(args.residual.as<T>()),
        norm_weight(args.before == Linear::Before::rms_norm ? args.norm_weight.as<T>() : nullptr),
        out_stride(args.out.stride[0]),
        x_stride(args.x.stride[0]),
        residual_stride(args.residual.stride[0]),
        rows(static_cast<int>(args.out.shape[0])),
        outputs(static_cast<int>(args.out.shape[1])),
        inputs(static_cast<int>(args.weight.shape[1])),
        float_out(args.out.dtype == DType::f32),
        inverse_inputs(1.0f / static_cast<float>(inputs)),
        epsilon(args.epsilon) {}
};

}  // namespace nvllm::kernels::cuda
