#pragma once

#include "kernels/gated_activation.h"

namespace nvllm::kernels::cuda {

// kernels::gated_activation of checked arguments on a stream of the CUDA backend.
void gated_activation(const GatedActivation& args, Stream& stream);

}  // namespace nvllm::kernels::cuda
