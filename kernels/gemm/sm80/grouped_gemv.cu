#include "kernels/gemm/cuda/grouped_gemm.h"
#include "kernels/gemm/sm80/grouped_gemv.cuh"

namespace nvllm::kernels::cuda {
namespace {

template <typename T, int kTiles, bool kGated>
void launch(const GroupedGemm& grouped, cudaStream_t stream) {
  const GroupedParams<T> p(grouped);
  launch_grouped(few_rows::grouped_few_rows_kernel<T, kTiles, kGated>, few_rows::kBlocks,
                 few_rows::kWarps * 32, few_rows::shared_bytes(p.groups), stream, p);
}

template <typename T>
void launch(const GroupedGemm& grouped, cudaStream_t stream) {
  const bool gated = grouped.epilogue != Epilogue::none;
  // With at most one row per group on average there are few items; with more, x should be read once
  // for more outputs.
  const bool wide = grouped.m() > grouped.groups();
  if (gated)
    return wide ? launch<T, 4, true>(grouped, stream) : launch<T, 2, true>(grouped, stream);
  wide ? launch<T, 4, false>(grouped, stream) : launch<T, 2, false>(grouped, stream);
}

}  // namespace

void grouped_gemv(const GroupedGemm& grouped, Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  grouped.weight.format == WeightFormat::bf16 ? launch<Bf16>(grouped, native)
                                              : launch<F16>(grouped, native);
}

}  // namespace nvllm::kernels::cuda
