#pragma once

#include "kernels/sampling/apply_penalties.h"

namespace nvllm::kernels::cpu {

// kernels::apply_penalties of checked arguments on a stream of the CPU backend.
void apply_penalties(const ApplyPenalties& args, Stream& stream);

}  // namespace nvllm::kernels::cpu
