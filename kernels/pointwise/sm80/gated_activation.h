#pragma once

#include "kernels/pointwise/gated_activation.h"

namespace nvllm::kernels::cuda {

// kernels::gated_activation of checked arguments on a stream of the CUDA backend.
// next_comes_early: see next_kernel.cuh.
void gated_activation(const GatedActivation& args, Stream& stream, bool next_comes_early = false);

}  // namespace nvllm::kernels::cuda
