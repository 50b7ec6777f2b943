// A GEMM's prologue as a separate kernel.
#pragma once

#include "kernels/gemm/gemm_steps.h"
#include "kernels/pointwise/backends.h"

namespace nvllm::kernels::cuda {

inline void enqueue_prologue(const GemmCall& call, Stream& stream) {
  if (!call.plan.prologue_kernel || call.weight.inputs() == 0) return;
  const bool early = call.plan.prologue_triggers_early;
  if (call.plan.prologue == Prologue::rms_norm) return rms_norm(norm_of(call), stream, early);
  gated_activation(prologue_activation(call), stream, early);
}

}  // namespace nvllm::kernels::cuda
