#pragma once

#include "kernels/pointwise/copy_last_kv.h"

namespace nvllm::kernels::cuda {

// kernels::copy_last_kv of checked arguments on a stream of the CUDA backend.
void copy_last_kv(const CopyLastKv& args, Stream& stream);

}  // namespace nvllm::kernels::cuda
