#pragma once

#include "kernels/attention/attention.h"

namespace nvllm::kernels::cuda {

// kernels::attention of checked arguments on a stream of the CUDA backend.
void attention(const Attention& args, Stream& stream);

}  // namespace nvllm::kernels::cuda
