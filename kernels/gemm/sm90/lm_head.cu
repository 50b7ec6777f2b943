#include <algorithm>

#include "device/cuda/stream.h"
#include "kernels/common/sm90/tma.cuh"
#include "kernels/gemm/sm80/linear_params.h"
#include "kernels/gemm/sm90/head.cuh"
#include "kernels/gemm/sm90/head.h"

namespace nvllm::kernels::cuda {
namespace {

// Fewer rows are for kernels/gemm/sm80/matvec.h; of more of them x, which every tile reads, would be as long as weights.
constexpr std::int64_t kMinRows = 17, kMaxRows = 128;
// So many tiles of a block, so that it does not matter that some have one more.
constexpr int kLeastTiles = 2;
constexpr double kLeastShare = 0.8;  // of the places for tiles that have one

int tiles_of(const Linear& args) {
  return static_cast<int>((args.weight.shape[0] + head::kOutputs - 1) / head::kOutputs);
}

template <typename T, int kRows, bool kDraws>
void launch(const Linear& args, const head::DrawParams& draw, int multiprocessors,
            cudaStream_t stream) {
  const auto kernel = head::head_kernel<T, kRows, kDraws>;
  constexpr int kBytes = head::Places<kRows>::kBytes;
  nvllm::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
      "preparing linear");
  const head::HeadParams p{
      args.out.as<float>(), args.out.stride[0], static_cast<int>(args.out.shape[0]),
      static_cast<int>(args.weight.shape[0]), static_cast<int>(args.weight.shape[1])};
  const LaunchShape shape{dim3(static_cast<unsigned>(std::min(tiles_of(args), multiprocessors))),
                          dim3(head::kThreads), static_cast<std::size_t>(kBytes)};
  launch_early("launching linear", kernel, shape, stream,
               describe_rows("linear", args.weight, head::kOutputs),
               describe_rows("linear", args.x, kRows), p, draw);
}

template <typename T, bool kDraws>
void launch(const Linear& args, const head::DrawParams& draw, int multiprocessors,
            cudaStream_t stream) {
  const std::int64_t rows = args.out.shape[0];
  if (rows <= 32) return launch<T, 32, kDraws>(args, draw, multiprocessors, stream);
  if (rows <= 64) return launch<T, 64, kDraws>(args, draw, multiprocessors, stream);
  static_assert(kMaxRows == 128);
  launch<T, 128, kDraws>(args, draw, multiprocessors, stream);
}

template <bool kDraws>
void launch(const Linear& args, const head::DrawParams& draw, int multiprocessors, Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  args.weight.dtype == DType::bf16 ? launch<Bf16, kDraws>(args, draw, multiprocessors, native)
                                   : launch<F16, kDraws>(args, draw, multiprocessors, native);
}

}  // namespace

Head::Head()
    : multiprocessors_(nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount)),
      is_hopper_(cuda::is_hopper()) {}

bool Head::takes(const Linear& args) const {
  const std::int64_t rows = args.out.shape[0];
  if (!is_hopper_ || rows < kMinRows || rows > kMaxRows || args.weight.shape[1] == 0) return false;
  if (args.weight.dtype == DType::f32 || args.out.dtype != DType::f32) return false;
  const bool plain = args.bias.data == nullptr && args.residual.data == nullptr && !is_gated(args);
  if (!plain || !whole_vectors(args.weight) || !whole_vectors(args.x)) return false;
  const int tiles = tiles_of(args);
  const int most = (tiles + multiprocessors_ - 1) / multiprocessors_;  // of a block
  return most >= kLeastTiles && tiles >= kLeastShare * most * multiprocessors_;
}

void Head::enqueue(const Linear& args, Stream& stream) const {
  const SampleTokens none;
  launch<false>(args, {SamplingRowsView(), nullptr, SampledTokens(none)}, multiprocessors_, stream);
}

bool Head::draws(const SampleTokens& draw) {
  return draw.thresholds.data == nullptr && draw.rows.changed_logits.data == nullptr;
}

void Head::enqueue(const Linear& args, const SampleTokens& draw, Stream& stream) const {
  launch<true>(
      args,
      {SamplingRowsView(draw.rows), draw.scratch.as<unsigned long long>(), SampledTokens(draw)},
      multiprocessors_, stream);
}

}  // namespace nvllm::kernels::cuda
