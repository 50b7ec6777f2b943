// The plain definitions of operations, run at once by the caller: what tests compare every backend
// with.
#pragma once

#include "kernels/gemm/gemm.h"

namespace nvllm::kernels {

// Goes by the plan's prologue and epilogue.
void gemm_reference(const GemmCall& call);
// The deferred norm of out as it is.
void defer_norm_reference(const GemmCall& call);

}  // namespace nvllm::kernels
