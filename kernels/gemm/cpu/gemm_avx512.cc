#include "kernels/gemm/cpu/quantized_lanes_avx512.h"
// Behind the lanes.
#include "kernels/gemm/cpu/gemm_lane_blocks.h"
#include "kernels/gemm/cpu/quantized_blocks.h"

namespace nvllm::kernels::cpu {

const GemmKernels& gemm_kernels_avx512(DType type) {
  switch (type) {
    case DType::f32: return kInvariantKernels<DotOfFloats<float>>;
    case DType::bf16: return kInvariantKernels<DotOfPairs>;
    default: return kInvariantKernels<DotOfFloats<F16>>;
  }
}

const DotKernels& quantized_dots_avx512(const GemmTask& gemm) {
  return choose_dots(gemm);
}

const BlockKernels& quantized_blocks_avx512(DType type) {
  return choose_blocks(type);
}

}  // namespace nvllm::kernels::cpu
