#pragma once

#include "kernels/pointwise/random_fill.h"

namespace nvllm::kernels::cpu {

// kernels::random_fill of checked arguments on a stream of the CPU backend.
void random_fill(const RandomFill& args, Stream& stream);

}  // namespace nvllm::kernels::cpu
