#pragma once

#include "kernels/pointwise/copy_to_place.h"

namespace nvllm::kernels::cuda {

// kernels::copy_to_place of checked arguments on a stream of the CUDA backend.
void copy_to_place(const CopyToPlace& args, Stream& stream);

}  // namespace nvllm::kernels::cuda
