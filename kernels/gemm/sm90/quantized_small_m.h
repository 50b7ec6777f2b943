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

// rows: x in fp8, if it is multiplied in fp8, otherwise empty.
void launch_quantized_small_m(const GemmCall& call, const Fp8Rows& rows, cudaStream_t stream);

}  // namespace nvllm::kernels::cuda
