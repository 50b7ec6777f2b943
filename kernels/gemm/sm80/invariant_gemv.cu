#include "device/cuda/stream.h"
#include "kernels/gemm/backends.h"
#include "kernels/gemm/gemm_steps.h"
#include "kernels/gemm/sm80/invariant_gemv.cuh"
#include "kernels/gemm/sm90/entry_points.h"

namespace nvllm::kernels::cuda {
namespace {

template <typename T, bool kGated, int kMaxRowsOf, int kTiles, int kBatches, int kWarps>
void launch(const GemmParams<T>& p, cudaStream_t stream) {
  constexpr int kOutputs = (kGated ? kTiles / 2 : kTiles) * kTileOutputs * kWarps;
  constexpr int kBytes = invariant::shared_bytes(kMaxRowsOf / 8, kTiles, kBatches, kWarps);
  const auto kernel = invariant::gemv_kernel<T, kGated, kMaxRowsOf, kTiles, kBatches, kWarps>;
  nvllm::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
      "preparing a GEMV");
  const LaunchShape shape{dim3(static_cast<unsigned>((p.outputs + kOutputs - 1) / kOutputs)),
                          dim3(kWarps * 32), static_cast<std::size_t>(kBytes)};
  launch_with_pdl("launching a GEMV", kernel, shape, stream, p);
}

// Few outputs: one warp per tile, in blocks of one warp, so that multiprocessors get about equally
// many. Many outputs: two tiles per warp, which share x.
template <typename T, bool kGated, int kMaxRowsOf>
void launch(const GemmParams<T>& p, int multiprocessors, cudaStream_t stream) {
  if constexpr (kGated) {
    launch<T, true, kMaxRowsOf, 2, 5, 2>(p, stream);
  } else {
    if (p.outputs > 48 * multiprocessors) return launch<T, false, kMaxRowsOf, 2, 5, 2>(p, stream);
    launch<T, false, kMaxRowsOf, 1, 8, 1>(p, stream);
  }
}

}  // namespace

InvariantGemv::InvariantGemv()
    : multiprocessors_(nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount)) {}

bool InvariantGemv::can_implement(const GemmShape& shape) const {
  return takes_invariant_gemv_sm90(shape, multiprocessors_) ||
         (fits_gemv(shape) && shape.fusion.prologue == Prologue::none);
}

template <typename T>
void InvariantGemv::enqueue_as(const GemmCall& call, Stream& stream) const {
  const GemmParams<T> p(call);
  const auto enqueue = [&]<int kMaxRowsOf>() {
    const cudaStream_t native = nvllm::cuda::native(stream);
    is_gated(call) ? launch<T, true, kMaxRowsOf>(p, multiprocessors_, native)
                   : launch<T, false, kMaxRowsOf>(p, multiprocessors_, native);
  };
  p.rows <= 8 ? enqueue.template operator()<8>() : enqueue.template operator()<16>();
}

void InvariantGemv::enqueue(const GemmCall& call, Stream& stream) const {
  const GemmShape& shape = call.plan.shape;
  if (takes_invariant_gemv_sm90(call.plan.prologue_kernel ? shape_after_prologue(shape) : shape,
                                multiprocessors_)) {
    return launch_invariant_gemv_sm90(call, multiprocessors_, nvllm::cuda::native(stream));
  }
  call.weight.format == WeightFormat::bf16 ? enqueue_as<Bf16>(call, stream)
                                           : enqueue_as<F16>(call, stream);
}

}  // namespace nvllm::kernels::cuda
