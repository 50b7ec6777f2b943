// Keys and values on their way into the L2 (kernels/gemm/kv_prefetch.h): a few instructions of a warp in each block, which wait for
// nothing.
#pragma once

#include "kernels/gemm/kv_prefetch.h"

namespace nvllm::kernels::cuda {

#if __CUDA_ARCH__ >= 900

// The share of block blockIdx.x of gridDim.x. All lanes of a warp call it, once what the table and the lengths are has been
// written.
__device__ __forceinline__ void fetch_ahead(const KvPieces& ahead, int lane) {
  for (int i = blockIdx.x + lane * gridDim.x; i < ahead.pieces(); i += 32 * gridDim.x) {
    const char* const piece = ahead.piece(i);
    if (piece == nullptr) continue;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(piece), "r"(ahead.piece_bytes())
                 : "memory");
  }
}

#endif

}  // namespace nvllm::kernels::cuda
