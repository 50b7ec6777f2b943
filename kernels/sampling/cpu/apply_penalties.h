#pragma once

#include "kernels/sampling/apply_penalties.h"

namespace nvllm::kernels::cpu {

// kernels::adjust_logits of checked arguments on a stream of the CPU backend.
void adjust_logits(const AdjustLogits& args, Stream& stream);

}  // namespace nvllm::kernels::cpu
