#include "kernels/gemm/cpu/quantized_gemm.h"

#include <vector>

namespace nvllm::kernels::cpu {
namespace {

template <typename T, typename Out>
void multiply(const QuantizedGemmTask& task, std::int64_t begin, std::int64_t end) {
  const GemmTask& gemm = task.task;
  const QuantizedShape& shape = task.weight;
  const std::int64_t scale_bytes =
      shape.scale_columns() * static_cast<std::int64_t>(size_of(shape.scale_type()));
  std::vector<float> weights(static_cast<std::size_t>(gemm.inputs));
  for (std::int64_t output = begin; output < end; ++output) {
    dequantize_row(shape, static_cast<const std::byte*>(gemm.weight) + output * shape.row_bytes(),
                   static_cast<const std::byte*>(task.scales) + output * scale_bytes,
                   weights.data());
    for (std::int64_t row = 0; row < gemm.rows; ++row) {
      const T* const x = static_cast<const T*>(gemm.x) + row * gemm.x_stride;
      float sum = 0;
      for (std::int64_t i = 0; i < gemm.inputs; ++i)
        sum += to_float(x[i]) * weights[static_cast<std::size_t>(i)];
      if (gemm.bias != nullptr) sum += to_float(static_cast<const T*>(gemm.bias)[output]);
      if (gemm.residual != nullptr) {
        sum += to_float(static_cast<const T*>(gemm.residual)[row * gemm.residual_stride + output]);
      }
      static_cast<Out*>(gemm.out)[row * gemm.out_stride + output] = from_float<Out>(sum);
    }
  }
}

template <typename T>
void multiply_to(const QuantizedGemmTask& gemm, std::int64_t begin, std::int64_t end) {
  gemm.task.out_f32 ? multiply<T, float>(gemm, begin, end) : multiply<T, T>(gemm, begin, end);
}

}  // namespace

void run_quantized(const QuantizedGemmTask& gemm, nvllm::cpu::ThreadPool& pool) {
  constexpr std::int64_t kOutputs = 16;  // of a thread, at least
  pool.run(gemm.task.outputs, kOutputs, [&](std::int64_t begin, std::int64_t end) {
    switch (gemm.task.dtype) {
      case DType::f32: return multiply_to<float>(gemm, begin, end);
      case DType::bf16: return multiply_to<Bf16>(gemm, begin, end);
      default: return multiply_to<F16>(gemm, begin, end);
    }
  });
}

}  // namespace nvllm::kernels::cpu
