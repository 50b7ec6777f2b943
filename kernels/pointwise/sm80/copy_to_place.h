#pragma once

#include "kernels/pointwise/copy_to_ring.h"

namespace nvllm::kernels::cuda {

// kernels::copy_to_ring of checked arguments on a stream of the CUDA backend.
void copy_to_ring(const CopyToRing& args, Stream& stream);

}  // namespace nvllm::kernels::cuda
