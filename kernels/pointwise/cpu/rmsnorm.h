#pragma once

#include "kernels/pointwise/rmsnorm.h"

namespace nvllm::kernels::cpu {

// kernels::rms_norm of checked arguments on a stream of the CPU backend.
void rms_norm(const RmsNorm& args, Stream& stream);

// The same at once, on the calling thread: for tasks that go on from there. Gives the same bits.
void rms_norm_now(const RmsNorm& args);

}  // namespace nvllm::kernels::cpu
