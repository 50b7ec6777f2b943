#pragma once

#include "kernels/pointwise/bias.h"

namespace nvllm::kernels::cuda {

// kernels::add_bias of checked arguments on a stream of the CUDA backend.
void add_bias(const AddBias& args, Stream& stream);

}  // namespace nvllm::kernels::cuda
