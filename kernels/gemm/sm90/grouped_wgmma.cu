#include "kernels/gemm/cuda/grouped_gemm.h"
#include "kernels/gemm/sm90/grouped_wgmma.cuh"

namespace nvllm::kernels::cuda {
namespace {

template <typename T, bool kGated, bool kGathers>
void launch(const GroupedGemm& grouped, cudaStream_t stream) {
  const GroupedParams<T> p(grouped);
  launch_grouped(grouped::grouped_wgmma_kernel<T, kGated, kGathers>, 1,
                 grouped::kConsumers + grouped::producers(kGathers),
                 grouped::shared_bytes(p.groups), stream,
                 describe_rows("gemm", grouped.weight.values, grouped::kBoxOutputs),
                 describe_rows("gemm", grouped.x, grouped::kRows), p);
}

template <typename T, bool kGated>
void launch(const GroupedGemm& grouped, cudaStream_t stream) {
  grouped.source_rows.data == nullptr ? launch<T, kGated, false>(grouped, stream)
                                      : launch<T, kGated, true>(grouped, stream);
}

template <typename T>
void launch(const GroupedGemm& grouped, cudaStream_t stream) {
  grouped.epilogue == Epilogue::none ? launch<T, false>(grouped, stream)
                                     : launch<T, true>(grouped, stream);
}

}  // namespace

void grouped_wgmma(const GroupedGemm& grouped, Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  grouped.weight.format == WeightFormat::bf16 ? launch<Bf16>(grouped, native)
                                              : launch<F16>(grouped, native);
}

}  // namespace nvllm::kernels::cuda
