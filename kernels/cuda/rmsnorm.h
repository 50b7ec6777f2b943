#pragma once

#include "kernels/rmsnorm.h"

namespace nvllm::kernels::cuda {

// kernels::rms_norm of checked arguments on a stream of the CUDA backend.
void rms_norm(const RmsNorm& args, Stream& stream);

}  // namespace nvllm::kernels::cuda
