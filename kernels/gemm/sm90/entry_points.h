// The invariant GEMV of Hopper (invariant_gemv.cu), as the kernels and the plan of all GPUs ask for
// it. Shapes are those that its own kernel sees (gemm_steps.h); `multiprocessors` are the GPU's.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/gemm/gemm.h"

namespace nvllm::kernels::cuda {

// Whether it can compute such a GEMM, also with RMSNorm as its prologue, and is expected to be
// faster than the kernel of all GPUs. False on another GPU.
bool takes_invariant_gemv_sm90(const GemmShape& shape, int multiprocessors);
// Whether all blocks of such a GEMM, without prologue, run at once and have half of the weight in
// flight before they wait for the previous kernel. A separate norm kernel, which overlaps that,
// then costs as little as one in every block. False on another GPU.
bool loads_early_sm90(const GemmShape& shape, int multiprocessors);
// Enqueues a call whose plan's shape it takes.
void launch_invariant_gemv_sm90(const GemmCall& call, int multiprocessors, cudaStream_t stream);

}  // namespace nvllm::kernels::cuda
