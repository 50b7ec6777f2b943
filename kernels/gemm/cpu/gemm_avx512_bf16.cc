#include "kernels/gemm/cpu/formats_bf16.h"

namespace nvllm::kernels::cpu {

const GemmKernels& gemm_kernels_avx512_bf16() {
  return kInvariantKernels<DotOfBf16>;
}

const BlockKernels& quantized_blocks_avx512_bf16() {
  return kQuantizedBlocks<InRegisters<BlocksOfBf16>>;
}

}  // namespace nvllm::kernels::cpu
