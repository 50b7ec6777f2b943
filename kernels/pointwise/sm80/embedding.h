#pragma once

#include "kernels/pointwise/embedding.h"

namespace nvllm::kernels::cuda {

// kernels::embedding of checked arguments on a stream of the CUDA backend.
void embedding(const Embedding& args, Stream& stream);

}  // namespace nvllm::kernels::cuda
