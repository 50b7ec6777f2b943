// Small-M GEMMs with quantized weights: the instance of the kernel (small_m.cuh) for a format and
// the tiles of the plan.
#include "kernels/gemm/sm90/small_m_launch.cuh"

namespace nvllm::kernels::cuda {
namespace {

using small_m::QuantizedWeights;

template <typename Weights>
void launch(const GemmCall& call, cudaStream_t stream, const Fp8Rows& rows = {}) {
  constexpr auto& kTileM = kSmallMQuantizedTiles;
  static_assert(kTileM.size() == 3);
  switch (call.plan.tiling.tile_m) {
    case kTileM[0]: return small_m::launch_tiles<Weights, kTileM[0]>(call, stream, rows);
    case kTileM[1]: return small_m::launch_tiles<Weights, kTileM[1]>(call, stream, rows);
    default: return small_m::launch_tiles<Weights, kTileM[2]>(call, stream, rows);
  }
}

}  // namespace

void launch_quantized_small_m(const GemmCall& call, const Fp8Rows& rows, cudaStream_t stream) {
  if (rows.values != nullptr) return launch<small_m::Fp8Weights<Bf16>>(call, stream, rows);
  switch (call.weight.format) {
    case WeightFormat::fp8: return launch<QuantizedWeights<WeightFormat::fp8, Bf16>>(call, stream);
    case WeightFormat::int8:
      return launch<QuantizedWeights<WeightFormat::int8, Bf16>>(call, stream);
    case WeightFormat::int4:
      return launch<QuantizedWeights<WeightFormat::int4, Bf16>>(call, stream);
    default: unexpected_format(call.weight.format, "small-M GEMM");
  }
}

}  // namespace nvllm::kernels::cuda
