#pragma once

#include "kernels/pointwise/gated_activation.h"

namespace nvllm::kernels::cpu {

// kernels::gated_activation of checked arguments on a stream of the CPU backend.
void gated_activation(const GatedActivation& args, Stream& stream);

}  // namespace nvllm::kernels::cpu
