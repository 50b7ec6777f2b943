#pragma once

#include "kernels/pointwise/step_input.h"

namespace nvllm::kernels::cuda {

// kernels::step_input of checked arguments on a stream of the CUDA backend.
void step_input(const StepInput& args, Stream& stream);

}  // namespace nvllm::kernels::cuda
