#pragma once

#include "kernels/pointwise/embedding.h"

namespace nvllm::kernels::cpu {

// kernels::embedding of checked arguments on a stream of the CPU backend.
void embedding(const Embedding& args, Stream& stream);

}  // namespace nvllm::kernels::cpu
