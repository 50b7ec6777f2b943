// GEMMs with quantized weights on the CPU.
#pragma once

#include "device/cpu/stream.h"
#include "kernels/gemm/cpu/gemm_kernels.h"
#include "kernels/gemm/quantized_weight.h"

namespace nvllm::kernels::cpu {

// task.dtype is x's.
struct QuantizedGemmTask {
  GemmTask task;
  const void* scales;
  QuantizedShape weight;
};

// On a stream's thread.
void run_quantized(const QuantizedGemmTask& gemm, nvllm::cpu::ThreadPool& pool);

}  // namespace nvllm::kernels::cpu
