#include "kernels/common/cpu/lanes_avx2.h"
#include "kernels/gemm/cpu/gemm_blocks.h"

namespace nvllm::kernels::cpu {

const GemmKernels& gemm_kernels_avx2(DType type) {
  switch (type) {
    case DType::f32: return kKernels<Dot<DotOfFloats<float>>, InRegisters<BlocksOfFloats<float>>>;
    case DType::bf16: return kKernels<Dot<DotOfPairs>, InRegisters<BlocksOfFloats<Bf16>>>;
    default: return kKernels<Dot<DotOfFloats<F16>>, InRegisters<BlocksOfFloats<F16>>>;
  }
}

}  // namespace nvllm::kernels::cpu
