// Small-M GEMMs with quantized weights, one object file per format.
#pragma once

#include <cuda_runtime.h>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/sm80/quantized.h"

namespace nvllm::kernels::cuda {

// With smaller weights, quantizing x to fp8 takes the time that fp8 saves.
inline constexpr std::int64_t kMinFp8Weights = 8 << 20;

// Whether x is multiplied in fp8, too.
inline bool takes_fp8_rows(const GemmShape& shape) {
  return may_quantize_rows(shape) && shape.outputs * shape.inputs >= kMinFp8Weights;
}

void launch_small_m_fp8_rows(const GemmCall& call, const Fp8Rows& rows, cudaStream_t stream);
void launch_small_m_fp8(const GemmCall& call, cudaStream_t stream);
void launch_small_m_int8(const GemmCall& call, cudaStream_t stream);
void launch_small_m_int4(const GemmCall& call, cudaStream_t stream);

}  // namespace nvllm::kernels::cuda
