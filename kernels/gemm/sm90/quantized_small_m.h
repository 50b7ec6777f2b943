// Small-M GEMMs with quantized weights, an object file of each format.
#pragma once

#include <cuda_runtime.h>

#include "kernels/gemm/gemm.h"

namespace nvllm::kernels::cuda {

void launch_small_m_fp8(const GemmCall& call, cudaStream_t stream);
void launch_small_m_int8(const GemmCall& call, cudaStream_t stream);
void launch_small_m_int4(const GemmCall& call, cudaStream_t stream);

}  // namespace nvllm::kernels::cuda
