#include <algorithm>

#include "device/cuda/stream.h"
#include "kernels/common/cuda_arch.h"
#include "kernels/common/sm90/tma.cuh"
#include "kernels/gemm/backends.h"
#include "kernels/gemm/gemm_steps.h"
#include "kernels/gemm/sm90/lm_head.cuh"

namespace nvllm::kernels::cuda {
namespace {

// The GEMV (kernels/gemm/sm80/gemv.cuh) takes fewer rows; with more rows, x, which every tile
// reads, would be as long as the weights.
constexpr std::int64_t kMinRows = 17, kMaxRows = 128;
// Blocks have enough tiles that one more in some of them does not matter.
constexpr int kMinTiles = 2;
constexpr double kMinFilled = 0.8;  // the share of the grid's tile slots that have a tile

int tiles_of(std::int64_t outputs) {
  return static_cast<int>((outputs + lm_head::kOutputs - 1) / lm_head::kOutputs);
}

template <typename T, int kRows, bool kSamples>
void launch(const GemmCall& call, const lm_head::SampleParams& sample, int multiprocessors,
            cudaStream_t stream) {
  const auto kernel = lm_head::lm_head_kernel<T, kRows, kSamples>;
  constexpr int kBytes = lm_head::SharedLayout<kRows>::kBytes;
  nvllm::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
      "preparing the LM head");
  const TensorView& out = call.operands.out;
  const lm_head::LmHeadParams p{out.as<float>(), out.stride[0], static_cast<int>(out.shape[0]),
                                static_cast<int>(call.weight.outputs()),
                                static_cast<int>(call.weight.inputs())};
  const int tiles = tiles_of(call.weight.outputs());
  const LaunchShape shape{dim3(static_cast<unsigned>(std::min(tiles, multiprocessors))),
                          dim3(lm_head::kThreads), static_cast<std::size_t>(kBytes)};
  launch_with_pdl("launching the LM head", kernel, shape, stream,
                  describe_rows("gemm", call.weight.values, lm_head::kOutputs),
                  describe_rows("gemm", x_of(call), kRows), p, sample);
}

template <typename T, bool kSamples>
void launch(const GemmCall& call, const lm_head::SampleParams& sample, int multiprocessors,
            cudaStream_t stream) {
  const std::int64_t rows = call.operands.out.shape[0];
  if (rows <= 32) return launch<T, 32, kSamples>(call, sample, multiprocessors, stream);
  if (rows <= 64) return launch<T, 64, kSamples>(call, sample, multiprocessors, stream);
  static_assert(kMaxRows == 128);
  launch<T, 128, kSamples>(call, sample, multiprocessors, stream);
}

template <bool kSamples>
void launch(const GemmCall& call, const lm_head::SampleParams& sample, int multiprocessors,
            Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  call.weight.format == WeightFormat::bf16
      ? launch<Bf16, kSamples>(call, sample, multiprocessors, native)
      : launch<F16, kSamples>(call, sample, multiprocessors, native);
}

}  // namespace

LmHead::LmHead()
    : multiprocessors_(nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount)),
      runs_sm90a_(cuda::runs_sm90a()) {}

bool LmHead::can_implement(const GemmShape& shape, bool invariant) const {
  const std::int64_t min_rows = invariant ? 1 : kMinRows;
  if (!runs_sm90a_ || shape.m < min_rows || shape.m > kMaxRows || shape.inputs == 0) return false;
  if (is_quantized(shape.format) || shape.type == DType::f32) return false;
  if (shape.out_type != DType::f32) return false;
  const bool plain = !shape.bias && !shape.residual && shape.fusion.epilogue == Epilogue::none;
  if (!plain || !shape.vectors.weight || !shape.vectors.x) return false;
  const int tiles = tiles_of(shape.outputs);
  const int max_tiles = (tiles + multiprocessors_ - 1) / multiprocessors_;  // of a block
  return max_tiles >= kMinTiles && tiles >= kMinFilled * max_tiles * multiprocessors_;
}

void LmHead::enqueue(const GemmCall& call, Stream& stream) const {
  const SampleTokens none;
  launch<false>(call, {SamplingRowsView(), nullptr, SampledTokens(none)}, multiprocessors_, stream);
}

void LmHead::enqueue_and_sample(const GemmCall& call, const SampleTokens& sample,
                                Stream& stream) const {
  launch<true>(call,
               {SamplingRowsView(sample.rows), sample.scratch.as<unsigned long long>(),
                SampledTokens(sample)},
               multiprocessors_, stream);
}

}  // namespace nvllm::kernels::cuda
