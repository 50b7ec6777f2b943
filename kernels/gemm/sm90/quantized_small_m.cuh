// The instances of the small-M GEMM for a format of quantized weights.
#pragma once

#include "kernels/gemm/sm90/quantized_small_m.h"
#include "kernels/gemm/sm90/small_m_launch.cuh"

namespace nvllm::kernels::cuda::small_m {

template <typename Weights, int kRows>
void launch_tiles(const GemmCall& call, cudaStream_t stream, const Fp8Rows& rows) {
  static_assert(kSmallMMaxOutputTiles == 3);
  switch (call.plan.tiling.tiles) {
    case 1: return launch<Weights, 1, kRows>(call, stream, rows);
    case 2: return launch<Weights, 2, kRows>(call, stream, rows);
    default: return launch<Weights, 3, kRows>(call, stream, rows);
  }
}

template <typename Weights>
void launch_quantized(const GemmCall& call, cudaStream_t stream, const Fp8Rows& rows = {}) {
  constexpr auto& kTileM = kSmallMQuantizedTiles;
  static_assert(kTileM.size() == 3);
  switch (call.plan.tiling.tile_m) {
    case kTileM[0]: return launch_tiles<Weights, kTileM[0]>(call, stream, rows);
    case kTileM[1]: return launch_tiles<Weights, kTileM[1]>(call, stream, rows);
    default: return launch_tiles<Weights, kTileM[2]>(call, stream, rows);
  }
}

}  // namespace nvllm::kernels::cuda::small_m
