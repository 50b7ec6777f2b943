#pragma once

#include "kernels/pointwise/copy_newest.h"

namespace nvllm::kernels::cuda {

// kernels::copy_newest of checked arguments on a stream of the CUDA backend.
void copy_newest(const CopyNewest& args, Stream& stream);

}  // namespace nvllm::kernels::cuda
