#pragma once

#include "kernels/pointwise/rmsnorm.h"

namespace nvllm::kernels::cuda {

// kernels::rms_norm of checked arguments on a stream of the CUDA backend.
// next_comes_early: see next_kernel.cuh.
void rms_norm(const RmsNorm& args, Stream& stream, bool next_comes_early = false);

}  // namespace nvllm::kernels::cuda
