#pragma once

#include "kernels/pointwise/step_input.h"

namespace nvllm::kernels::cpu {

// kernels::step_input of checked arguments on a stream of the CPU backend.
void step_input(const StepInput& args, Stream& stream);

}  // namespace nvllm::kernels::cpu
