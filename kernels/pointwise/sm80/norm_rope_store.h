#pragma once

#include "kernels/pointwise/norm_rope_store.h"

namespace nvllm::kernels::cuda {

// kernels::norm_rope_store of checked arguments on a stream of the CUDA backend.
void norm_rope_store(const NormRopeStore& args, Stream& stream);

}  // namespace nvllm::kernels::cuda
