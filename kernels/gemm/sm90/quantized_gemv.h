// GEMVs with quantized weights by bulk copies (quantized_gemv.cu).
#pragma once

#include <cuda_runtime.h>

#include "kernels/gemm/gemm.h"

namespace nvllm::kernels::cuda {

// Enqueues a call planned for the quantized GEMV if this kernel is faster for it; otherwise returns
// false. On Hopper it is for GEMMs of bfloat16 by large weights: gated ones of fp8 or int4, and
// those of fp8 with a norm.
bool enqueue_bulk_gemv(const GemmCall& call, int multiprocessors, cudaStream_t stream);

}  // namespace nvllm::kernels::cuda
