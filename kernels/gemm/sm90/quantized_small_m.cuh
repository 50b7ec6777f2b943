// The instances of the small-M GEMM for a format of quantized weights.
#pragma once

#include "kernels/gemm/sm90/quantized_small_m.h"
#include "kernels/gemm/sm90/small_m_launch.cuh"

namespace nvllm::kernels::cuda::small_m {

template <WeightFormat kFormat, int kRows>
void launch_rows(const GemmCall& call, cudaStream_t stream) {
  static_assert(kSmallMMaxOutputTiles == 3);
  using Weights = QuantizedWeights<kFormat, Bf16>;
  switch (call.plan.tiling.tiles) {
    case 1: return launch<Weights, 1, kRows>(call, stream);
    case 2: return launch<Weights, 2, kRows>(call, stream);
    default: return launch<Weights, 3, kRows>(call, stream);
  }
}

template <WeightFormat kFormat>
void launch_quantized(const GemmCall& call, cudaStream_t stream) {
  static_assert(kSmallMQuantizedTiles.size() == 3);
  switch (call.plan.tiling.tile_m) {
    case kSmallMQuantizedTiles[0]:
      return launch_rows<kFormat, kSmallMQuantizedTiles[0]>(call, stream);
    case kSmallMQuantizedTiles[1]:
      return launch_rows<kFormat, kSmallMQuantizedTiles[1]>(call, stream);
    default: return launch_rows<kFormat, kSmallMQuantizedTiles[2]>(call, stream);
  }
}

}  // namespace nvllm::kernels::cuda::small_m
