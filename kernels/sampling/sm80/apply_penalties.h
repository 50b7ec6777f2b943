#pragma once

#include "kernels/sampling/apply_penalties.h"

namespace nvllm::kernels::cuda {

// kernels::apply_penalties of checked arguments on a stream of the CUDA backend.
void apply_penalties(const ApplyPenalties& args, Stream& stream);

}  // namespace nvllm::kernels::cuda
