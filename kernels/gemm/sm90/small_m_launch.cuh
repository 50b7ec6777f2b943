// Launches instances of the small-M GEMM.
#pragma once

#include <bit>

#include "base/check.h"
#include "device/cuda/stream.h"
#include "kernels/common/sm90/tma.cuh"
#include "kernels/gemm/sm80/entry_points.h"
#include "kernels/gemm/sm90/entry_points.h"
#include "kernels/gemm/sm90/small_m.cuh"
#include "kernels/gemm/small_m_plan.h"

namespace nvllm::kernels::cuda::small_m {

// How a shape's weight is loaded into shared memory.
inline SmallMWeight stages_of(const GemmShape& shape) {
  if (!is_quantized(shape.format)) return {};
  if (takes_fp8_rows(shape)) {
    constexpr int kGroup = static_cast<int>(kFp8Group);
    return {.stage_inputs = kGroup, .row_bytes = kGroup, .group = kGroup, .fp8_rows = true};
  }
  return {.stage_inputs = block_inputs_of(shape.format),
          .row_bytes = static_cast<int>(kQuantizedBlockBytes),
          .group = static_cast<int>(shape.group)};
}

// The same for the kernel that a call runs.
template <typename Weights>
SmallMWeight stages_of(const GemmWeight& weight) {
  if constexpr (Weights::kOperands == Operands::floats) return {};
  return {.stage_inputs = Weights::kStageInputs,
          .row_bytes = Weights::kRowBytes,
          .group = static_cast<int>(weight.quantized.group),
          .fp8_rows = Weights::kOperands == Operands::fp8};
}

// The tensor map of the weight: groups of 16 outputs, or of 8 gate rows and their 8 up rows. The
// bytes of quantized weights are described in pairs. Data that tensor cores read from shared memory
// is stored there in rows of 128 bytes, with a swizzle.
inline CUtensorMap describe_weight(const GemmCall& call, int tiles, int row_bytes) {
  const bool quantized = is_quantized(call.weight.format);
  const std::int64_t outputs = call.weight.outputs();
  const std::int64_t row = quantized ? call.weight.values.shape[1] / 2 : call.weight.inputs();
  const std::int64_t second = (is_gated(call) ? outputs / 2 : 8) * row;
  const std::int64_t group = (is_gated(call) ? 8 : 16) * row;
  return describe_tensor<4>(
      "gemm", call.weight.type(), call.weight.values.data,
      {{{row, 1, row_bytes / 2},
        {8, row, 8},
        {2, second, 2},
        {outputs / 16, group, tiles * kTileOutputs / 16}}},
      CU_TENSOR_MAP_L2_PROMOTION_NONE,
      row_bytes == kBoxRowBytes ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE);
}

inline ScaleWords scales_of(const GemmWeight& weight) {
  if (!is_quantized(weight.format)) return {};
  const QuantizedShape shape = weight.quantized_shape();
  return {.words = weight.quantized.scales.as<unsigned>(),
          .groups = static_cast<int>(shape.groups()),
          .group_bits = std::countr_zero(static_cast<unsigned>(shape.group))};
}

// rows: x in fp8, for weights that are multiplied by fp8 rows.
template <typename Weights, int kTiles, int kRows>
void launch(const GemmCall& call, cudaStream_t stream, const Fp8Rows& rows = {}) {
  using T = typename Weights::Element;
  using S = Shape<Weights, kTiles, kRows>;
  const SmallMTiling& tiling = call.plan.tiling;
  const SmallMWeight stages = stages_of<Weights>(call.weight);
  const int groups = small_m_groups_per_split(tiling, stages, call.weight.inputs());
  const auto kernel = small_m_kernel<Weights, kTiles, kRows>;
  const int bytes = shared_bytes<Weights, kTiles, kRows>(tiling.stages, tiling.k_splits, groups);
  NVLLM_CHECK(bytes == small_m_shared_bytes(tiling, stages, call.weight.inputs()),
              "the plan counts on other shared memory");
  nvllm::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
      "preparing a small-M GEMM");
  const int tiles = static_cast<int>((call.weight.outputs() + S::kOutputs - 1) / S::kOutputs);
  const LaunchShape shape{dim3(static_cast<unsigned>(tiles * tiling.k_splits)), dim3(S::kThreads),
                          static_cast<std::size_t>(bytes), static_cast<unsigned>(tiling.k_splits)};
  TensorView x = x_of(call);
  if constexpr (Weights::kOperands == Operands::fp8) {
    NVLLM_CHECK(rows.scale_stride == kRows, "scales of rows lie otherwise");
    x = TensorView(rows.values, DType::bf16, {x.shape[0], x.shape[1] / 2});  // pairs of bytes
  }
  launch_with_pdl("launching a small-M GEMM", kernel, shape, stream,
                  describe_weight(call, kTiles, Weights::kRowBytes),
                  describe_rows("gemm", x, kRows), rows.scales, GemmParams<T>(call),
                  DeferredNorms<T>(call), tiling.k_splits, tiling.stages, is_gated(call),
                  KvPieces(call.operands.kv_prefetch), scales_of(call.weight), groups);
}

// The same for the plan's number of output tiles.
template <typename Weights, int kRows>
void launch_tiles(const GemmCall& call, cudaStream_t stream, const Fp8Rows& rows = {}) {
  static_assert(kSmallMMaxOutputTiles == 3);
  switch (call.plan.tiling.tiles) {
    case 1: return launch<Weights, 1, kRows>(call, stream, rows);
    case 2: return launch<Weights, 2, kRows>(call, stream, rows);
    default: return launch<Weights, 3, kRows>(call, stream, rows);
  }
}

}  // namespace nvllm::kernels::cuda::small_m
