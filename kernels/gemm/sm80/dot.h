#pragma once

#include "kernels/gemm/linear.h"

namespace nvllm::kernels::cuda {

// A product of checked arguments with nothing before it, of any shape, type and alignment: a warp
// per output and four rows. Good for a few rows in float32, and for what nothing else takes.
void dot(const Linear& args, Stream& stream);

}  // namespace nvllm::kernels::cuda
