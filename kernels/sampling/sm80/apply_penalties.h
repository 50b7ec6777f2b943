#pragma once

#include "kernels/sampling/apply_penalties.h"

namespace nvllm::kernels::cuda {

// kernels::adjust_logits of checked arguments on a stream of the CUDA backend.
void adjust_logits(const AdjustLogits& args, Stream& stream);

}  // namespace nvllm::kernels::cuda
