#include <utility>

#include "base/check.h"
#include "device/cuda/stream.h"
#include "kernels/common/sm90/tma.cuh"
#include "kernels/gemm/linear_before.h"
#include "kernels/gemm/sm90/skinny.cuh"
#include "kernels/gemm/sm90/skinny.h"

namespace nvllm::kernels::cuda {
namespace {

using skinny::Shape;

bool whole_vectors_or_none(const TensorView& tensor) {
  return tensor.data == nullptr || whole_vectors(tensor);
}

// The first half of a norm is that of whole products, and its squares have room.
bool may_begin_norm(const Linear& args) {
  static_assert(kSkinnyMaxRows <= kSquaresRows && skinny::kTileOutputs == kSquaresColumns);
  return !is_gated(args) && args.begun.squares.data == nullptr &&
         args.out.dtype == args.weight.dtype && whole_vectors(args.begins.weighted) &&
         whole_vectors(args.next_norm_weight);
}

// As the kernel wants them: groups of 16 outputs, or of 8 gates and the 8 that these let through.
CUtensorMap describe_weight(const Linear& args, int tiles) {
  const std::int64_t outputs = args.weight.shape[0], inputs = args.weight.shape[1];
  const std::int64_t second = (is_gated(args) ? outputs / 2 : 8) * inputs;
  const std::int64_t group = (is_gated(args) ? 8 : 16) * inputs;
  return describe_tensor<4>("linear", args.weight.dtype, args.weight.data,
                            {{{inputs, 1, skinny::kStageInputs},
                              {8, inputs, 8},
                              {2, second, 2},
                              {outputs / 16, group, tiles * skinny::kTileOutputs / 16}}},
                            CU_TENSOR_MAP_L2_PROMOTION_NONE);
}

template <typename T, int kTiles, int kRows>
void launch(const Linear& args, const SkinnyPlan& plan, cudaStream_t stream) {
  const auto kernel = skinny::skinny_kernel<T, kTiles, kRows>;
  const int bytes = skinny::shared_bytes<kTiles, kRows>(plan.stages, plan.splits);
  NVLLM_CHECK(bytes == skinny_shared_bytes(plan), "the plan counts on other shared memory");
  nvllm::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
      "preparing linear");
  const LinearParams<T> p(args);
  constexpr int kOutputs = Shape<kTiles, kRows>::kOutputs;
  const int tiles = static_cast<int>((args.weight.shape[0] + kOutputs - 1) / kOutputs);
  const LaunchShape shape{dim3(static_cast<unsigned>(tiles * plan.splits)),
                          dim3(Shape<kTiles, kRows>::kThreads), static_cast<std::size_t>(bytes),
                          static_cast<unsigned>(plan.splits)};
  launch_early("launching linear", kernel, shape, stream, describe_weight(args, kTiles),
               describe_rows("linear", args.x, kRows), p, skinny::NormHalves<T>(args), plan.splits,
               plan.stages, is_gated(args), KvPieces(args.ahead));
}

template <typename T, int kRows>
void launch(const Linear& args, const SkinnyPlan& plan, cudaStream_t stream) {
  static_assert(kSkinnyMaxTiles == 3);
  switch (plan.tiles) {
    case 1: return launch<T, 1, kRows>(args, plan, stream);
    case 2: return launch<T, 2, kRows>(args, plan, stream);
    default: return launch<T, 3, kRows>(args, plan, stream);
  }
}

template <typename T>
void launch(const Linear& args, const SkinnyPlan& plan, cudaStream_t stream) {
  const auto launch_one = [&]<std::size_t... kRoom>(std::index_sequence<kRoom...> /*rooms*/) {
    return ((plan.rows == kSkinnyRooms[kRoom] &&
             (launch<T, kSkinnyRooms[kRoom]>(args, plan, stream), true)) ||
            ...);
  };
  const bool launched = launch_one(std::make_index_sequence<kSkinnyRooms.size()>());
  NVLLM_CHECK(launched, "the plan has room for so many rows as no kernel has");
}

// How many blocks in clusters of so many run at once that leave no room for a second one.
int places_of(int cluster) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(cluster));
  config.blockDim = dim3(Shape<1, 32>::kThreads);
  config.dynamicSmemBytes = 128 << 10;
  config.attrs = &attribute;
  config.numAttrs = 1;
  const auto kernel = skinny::skinny_kernel<Bf16, 1, 32>;
  nvllm::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(config.dynamicSmemBytes)),
                     "preparing linear");
  int clusters = 0;
  nvllm::cuda::check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config),
                     "asking how many clusters run at once");
  return clusters * cluster;
}

}  // namespace

const SkinnyMachine& Skinny::machine() const {
  std::call_once(asked_, [&] {
    if (!is_hopper()) return;
    for (int splits = 1; splits <= kSkinnyMaxSplits; ++splits)
      machine_.places[splits] = places_of(splits);
  });
  return machine_;
}

std::optional<SkinnyPlan> Skinny::plan(const Linear& args) const {
  const std::int64_t rows = args.out.shape[0];
  if (rows < kSkinnyMinRows || rows > kSkinnyMaxRows) return std::nullopt;
  if (args.weight.dtype == DType::f32) return std::nullopt;
  if (is_gated(args) && (args.activation != Activation::silu || args.bias.data != nullptr))
    return std::nullopt;
  // Bulk copies want whole vectors, and so are results stored and added to.
  if (!whole_vectors(args.weight) || !whole_vectors(args.x) || !whole_vectors(args.out) ||
      !whole_vectors_or_none(args.bias) || !whole_vectors_or_none(args.residual)) {
    return std::nullopt;
  }
  if (begins_norm(args) && !may_begin_norm(args)) return std::nullopt;
  return plan_skinny(rows, args.weight.shape[0], args.weight.shape[1], machine());
}

void Skinny::enqueue(const Linear& args, const SkinnyPlan& plan, Stream& stream) const {
  if (args.weight.dtype == DType::bf16)
    return launch<Bf16>(args, plan, nvllm::cuda::native(stream));
  launch<F16>(args, plan, nvllm::cuda::native(stream));
}

}  // namespace nvllm::kernels::cuda
