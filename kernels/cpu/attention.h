#pragma once

#include "kernels/attention.h"

namespace nvllm::kernels::cpu {

// kernels::attention of checked arguments on a stream of the CPU backend.
void attention(const Attention& args, Stream& stream);

}  // namespace nvllm::kernels::cpu
