#include <algorithm>

#include "device/cuda/stream.h"
#include "kernels/common/cuda_arch.h"
#include "kernels/gemm/sm80/gemv_plan.cuh"
#include "kernels/gemm/sm90/quantized_gemv.cuh"
#include "kernels/gemm/sm90/quantized_gemv.h"

namespace nvllm::kernels::cuda {
namespace {

// 16 warps in groups of four were the fastest, with the largest stages of which two fit.
constexpr int kSplits = 4, kWarps = 16, kGroups = kWarps / kSplits;
constexpr int kSlices = 4, kFewerSlices = 3, kMinStages = 2;
constexpr int kMaxRows = 8;
constexpr int kSharedBytes = 227 << 10;  // available to a block
// Smaller weights arrive before the rows of x do.
constexpr std::int64_t kMinWeights = 24 << 20;
// Chunks of the inputs must be this full on average.
constexpr double kMinFull = 0.8;

constexpr int rounded(int bytes, int to) {
  return (bytes + to - 1) / to * to;
}

struct Plan {
  bulk_gemv::Grid grid{};
  int shared_bytes = 0;

  bool exists() const { return grid.stages >= kMinStages; }
};

template <int kOfWarp>
int chunks_of(const QuantizedShape& weight) {
  return ceil_div(static_cast<int>(weight.row_bytes()),
                  bulk_gemv::Stage<kSplits, kOfWarp>::kChunkBytes);
}

bool suits(const GemmCall& call) {
  const QuantizedShape weight = call.weight.quantized_shape();
  const bool fp8 = weight.format == WeightFormat::fp8;
  if (!fp8 && weight.format != WeightFormat::int4) return false;
  if (!is_gated(call) && !(is_normed(call) && fp8)) return false;
  if (call.weight.type() != DType::bf16 || call.operands.out.shape[0] > kMaxRows) return false;
  if (weight.group < 128 || weight.inputs % weight.block_inputs() != 0) return false;
  const double chunks = chunks_of<kSlices>(weight);
  const double bytes = chunks * bulk_gemv::Stage<kSplits, kSlices>::kChunkBytes;
  return weight.outputs * weight.inputs >= kMinWeights &&
         static_cast<double>(weight.row_bytes()) >= kMinFull * bytes;
}

template <int kOfWarp>
Plan plan_of(const GemmCall& call, int multiprocessors) {
  using OfStage = bulk_gemv::Stage<kSplits, kOfWarp>;
  const QuantizedShape weight = call.weight.quantized_shape();
  const int rows = static_cast<int>(call.operands.out.shape[0]), width = is_gated(call) ? 2 : 1;
  Plan plan;
  bulk_gemv::Grid& grid = plan.grid;
  grid.share = ceil_div(static_cast<int>(weight.outputs) / width, multiprocessors);
  const int passes = ceil_div(ceil_div(grid.share, kPassOutputs / width), kGroups);
  grid.pass = ceil_div(grid.share, passes * kGroups);
  const int x_bytes = staged_bytes(rows, static_cast<int>(weight.inputs), is_normed(call), true);
  grid.scales = rounded(x_bytes, 128);
  const int pitch = bulk_gemv::scale_pitch(static_cast<int>(weight.groups()));
  grid.barriers = rounded(grid.scales + width * grid.share * pitch * 4, 16);
  const int room = kSharedBytes - 2 * kWarps * kMaxRows * kSumStride * 4 - grid.barriers - 128;
  grid.stages =
      std::min(room / (kGroups * (OfStage::kBytes + 16)), passes * chunks_of<kOfWarp>(weight));
  grid.rings = rounded(grid.barriers + kGroups * grid.stages * 16, 128);
  plan.shared_bytes = grid.rings + kGroups * grid.stages * OfStage::kBytes;
  return plan;
}

template <WeightFormat kFormat, int kUnit, bool kNormed, bool kGated, int kOfWarp>
void launch(const GemmCall& call, const Plan& plan, cudaStream_t stream) {
  const auto kernel = bulk_gemv::bulk_gemv_kernel<Bf16, kFormat, kUnit, kNormed, kGated, kMaxRows,
                                                  kSplits, kOfWarp, kWarps>;
  nvllm::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_bytes),
      "preparing a GEMV");
  const GemmParams<Bf16> p(call);
  const LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(p.outputs, plan.grid.share))),
                          dim3((kWarps + kGroups) * 32),
                          static_cast<std::size_t>(plan.shared_bytes)};
  launch_with_pdl("launching a GEMV", kernel, shape, stream, p, QuantizedOperand(call.weight),
                  plan.grid);
}

template <int kOfWarp>
void launch(const GemmCall& call, const Plan& plan, cudaStream_t stream) {
  const bool normed = is_normed(call);
  if (call.weight.format == WeightFormat::int4) {
    return normed ? launch<WeightFormat::int4, 128, true, true, kOfWarp>(call, plan, stream)
                  : launch<WeightFormat::int4, 128, false, true, kOfWarp>(call, plan, stream);
  }
  if (!is_gated(call)) {
    return launch<WeightFormat::fp8, 64, true, false, kOfWarp>(call, plan, stream);
  }
  normed ? launch<WeightFormat::fp8, 64, true, true, kOfWarp>(call, plan, stream)
         : launch<WeightFormat::fp8, 64, false, true, kOfWarp>(call, plan, stream);
}

}  // namespace

bool enqueue_bulk_gemv(const GemmCall& call, int multiprocessors, cudaStream_t stream) {
  if (!suits(call) || !runs_sm90a()) return false;
  const Plan plan = plan_of<kSlices>(call, multiprocessors);
  if (plan.exists()) {
    launch<kSlices>(call, plan, stream);
    return true;
  }
  const Plan second = plan_of<kFewerSlices>(call, multiprocessors);
  if (second.exists()) launch<kFewerSlices>(call, second, stream);
  return second.exists();
}

}  // namespace nvllm::kernels::cuda
