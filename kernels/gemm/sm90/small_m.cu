#include <utility>

#include "base/check.h"
#include "device/cuda/stream.h"
#include "kernels/common/sm90/tma.cuh"
#include "kernels/gemm/backends.h"
#include "kernels/gemm/sm90/small_m.cuh"

namespace nvllm::kernels::cuda {
namespace {

using small_m::Shape;

static_assert(kSmallMMaxRows <= kSquaresRows && small_m::kTileOutputs == kSquaresColumns);

// As the kernel wants the weight: groups of 16 outputs, or of 8 gates and the 8 that these let
// through.
CUtensorMap describe_weight(const GemmCall& call, int tiles) {
  const std::int64_t outputs = call.weight.outputs(), inputs = call.weight.inputs();
  const std::int64_t second = (is_gated(call) ? outputs / 2 : 8) * inputs;
  const std::int64_t group = (is_gated(call) ? 8 : 16) * inputs;
  return describe_tensor<4>("gemm", call.weight.values.dtype, call.weight.values.data,
                            {{{inputs, 1, small_m::kStageInputs},
                              {8, inputs, 8},
                              {2, second, 2},
                              {outputs / 16, group, tiles * small_m::kTileOutputs / 16}}},
                            CU_TENSOR_MAP_L2_PROMOTION_NONE);
}

template <typename T, int kTiles, int kRows>
void launch(const GemmCall& call, cudaStream_t stream) {
  const SmallMTiling& tiling = call.plan.tiling;
  const auto kernel = small_m::small_m_kernel<T, kTiles, kRows>;
  const int bytes = small_m::shared_bytes<kTiles, kRows>(tiling.stages, tiling.k_splits);
  NVLLM_CHECK(bytes == small_m_shared_bytes(tiling), "the plan counts on other shared memory");
  nvllm::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
      "preparing a small-M GEMM");
  const GemmParams<T> p(call);
  constexpr int kOutputs = Shape<kTiles, kRows>::kOutputs;
  const int tiles = static_cast<int>((call.weight.outputs() + kOutputs - 1) / kOutputs);
  const LaunchShape shape{dim3(static_cast<unsigned>(tiles * tiling.k_splits)),
                          dim3(Shape<kTiles, kRows>::kThreads), static_cast<std::size_t>(bytes),
                          static_cast<unsigned>(tiling.k_splits)};
  launch_early("launching a small-M GEMM", kernel, shape, stream, describe_weight(call, kTiles),
               describe_rows("gemm", x_of(call), kRows), p, small_m::DeferredNorms<T>(call),
               tiling.k_splits, tiling.stages, is_gated(call), KvPieces(call.operands.kv_prefetch));
}

template <typename T, int kRows>
void launch(const GemmCall& call, cudaStream_t stream) {
  static_assert(kSmallMMaxOutputTiles == 3);
  switch (call.plan.tiling.tiles) {
    case 1: return launch<T, 1, kRows>(call, stream);
    case 2: return launch<T, 2, kRows>(call, stream);
    default: return launch<T, 3, kRows>(call, stream);
  }
}

template <typename T>
void launch(const GemmCall& call, cudaStream_t stream) {
  const auto launch_one = [&]<std::size_t... kTile>(std::index_sequence<kTile...> /*tiles*/) {
    return ((call.plan.tiling.tile_m == kSmallMTiles[kTile] &&
             (launch<T, kSmallMTiles[kTile]>(call, stream), true)) ||
            ...);
  };
  const bool launched = launch_one(std::make_index_sequence<kSmallMTiles.size()>());
  NVLLM_CHECK(launched, "tile M is ", call.plan.tiling.tile_m, ", for which there is no kernel");
}

// How many blocks in clusters of this size run at once if there is one on a multiprocessor.
int resident_blocks(int cluster) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(cluster));
  config.blockDim = dim3(Shape<1, 32>::kThreads);
  config.dynamicSmemBytes = 128 << 10;
  config.attrs = &attribute;
  config.numAttrs = 1;
  const auto kernel = small_m::small_m_kernel<Bf16, 1, 32>;
  nvllm::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(config.dynamicSmemBytes)),
                     "preparing a small-M GEMM");
  int clusters = 0;
  nvllm::cuda::check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config),
                     "asking how many clusters run at once");
  return clusters * cluster;
}

}  // namespace

std::optional<SmallMTiling> SmallM::plan(const GemmShape& shape) {
  if (shape.m < kSmallMMinRows || shape.m > kSmallMMaxRows) return std::nullopt;
  if (is_quantized(shape.format) || shape.type == DType::f32) return std::nullopt;
  const GemmFusion& fusion = shape.fusion;
  const bool gated = fusion.epilogue == Epilogue::gated_activation;
  if (gated && (fusion.activation != Activation::silu || shape.bias)) return std::nullopt;
  // Bulk copies want whole vectors, and so are results stored and added to.
  const GemmShape::Vectors& vectors = shape.vectors;
  if (!vectors.weight || !vectors.x || !vectors.out || !vectors.bias || !vectors.residual) {
    return std::nullopt;
  }
  if (!occupancy_) {
    occupancy_.emplace();
    for (int splits = 1; is_hopper() && splits <= kSmallMMaxSplits; ++splits) {
      occupancy_->blocks[splits] = resident_blocks(splits);
    }
  }
  return plan_small_m(shape.m, shape.outputs, shape.inputs, *occupancy_);
}

bool SmallM::defers_norm(const GemmShape& shape) {
  return shape.out_type == shape.type && shape.vectors.next;
}

void SmallM::enqueue(const GemmCall& call, Stream& stream) const {
  const cudaStream_t native = nvllm::cuda::native(stream);
  call.weight.format == WeightFormat::bf16 ? launch<Bf16>(call, native) : launch<F16>(call, native);
}

}  // namespace nvllm::kernels::cuda
