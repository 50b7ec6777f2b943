#pragma once

#include "kernels/pointwise/bias.h"

namespace nvllm::kernels::cpu {

// kernels::add_bias of checked arguments on a stream of the CPU backend.
void add_bias(const AddBias& args, Stream& stream);

}  // namespace nvllm::kernels::cpu
