#include <utility>

#include "kernels/common/cuda_arch.h"
#include "kernels/gemm/backends.h"
#include "kernels/gemm/sm90/entry_points.h"
#include "kernels/gemm/sm90/small_m_launch.cuh"

namespace nvllm::kernels::cuda {
namespace {

static_assert(kSmallMMaxRows <= kSquaresRows && small_m::kTileOutputs == kSquaresColumns);

template <typename T>
void launch(const GemmCall& call, cudaStream_t stream) {
  const auto launch_one = [&]<std::size_t... kTile>(std::index_sequence<kTile...> /*tiles*/) {
    return ((call.plan.tiling.tile_m == kSmallMTiles[kTile] &&
             (small_m::launch_tiles<small_m::FloatWeights<T>, kSmallMTiles[kTile]>(call, stream),
              true)) ||
            ...);
  };
  const bool launched = launch_one(std::make_index_sequence<kSmallMTiles.size()>());
  NVLLM_CHECK(launched, "tile M is ", call.plan.tiling.tile_m, ", for which there is no kernel");
}

// The number of resident blocks in clusters of this size with one block per multiprocessor.
int resident_blocks(int cluster) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(cluster));
  config.blockDim = dim3(small_m::Shape<small_m::FloatWeights<Bf16>, 1, 32>::kThreads);
  config.dynamicSmemBytes = 128 << 10;
  config.attrs = &attribute;
  config.numAttrs = 1;
  const auto kernel = small_m::small_m_kernel<small_m::FloatWeights<Bf16>, 1, 32>;
  nvllm::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(config.dynamicSmemBytes)),
                     "preparing a small-M GEMM");
  int clusters = 0;
  nvllm::cuda::check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config),
                     "asking how many clusters run at once");
  return clusters * cluster;
}

}  // namespace

std::optional<SmallMTiling> SmallM::plan(const GemmShape& shape, bool invariant) {
  const int min_rows = invariant ? 1 : kSmallMMinRows;
  if (shape.m < min_rows || shape.m > kSmallMMaxRows) return std::nullopt;
  if (shape.type == DType::f32) return std::nullopt;
  // There are no instances of quantized weights for float16.
  if (is_quantized(shape.format) && shape.type != DType::bf16) return std::nullopt;
  const GemmFusion& fusion = shape.fusion;
  const bool gated = fusion.epilogue == Epilogue::gated_activation;
  if (gated && (fusion.activation != Activation::silu || shape.bias)) return std::nullopt;
  // Bulk copies require whole vectors, and so do results and residuals.
  const GemmShape::Vectors& vectors = shape.vectors;
  if (!vectors.weight || !vectors.x || !vectors.out || !vectors.bias || !vectors.residual) {
    return std::nullopt;
  }
  if (!occupancy_) {
    occupancy_.emplace();
    for (int splits = 1; runs_sm90a() && splits <= kSmallMMaxSplits; ++splits) {
      occupancy_->blocks[splits] = resident_blocks(splits);
    }
  }
  return plan_small_m(shape.m, shape.outputs, shape.inputs, *occupancy_, small_m::stages_of(shape),
                      invariant);
}

bool SmallM::defers_norm(const GemmShape& shape) {
  return shape.out_type == shape.type && shape.vectors.next;
}

bool SmallM::wants_fp8_rows(const GemmShape& shape) {
  return takes_fp8_rows(shape);
}

void SmallM::enqueue(const GemmCall& call, const Fp8Rows& rows, Stream& stream) const {
  const cudaStream_t native = nvllm::cuda::native(stream);
  if (is_quantized(call.weight.format)) return launch_quantized_small_m(call, rows, native);
  call.weight.format == WeightFormat::bf16 ? launch<Bf16>(call, native) : launch<F16>(call, native);
}

}  // namespace nvllm::kernels::cuda
