#include "kernels/gemm/cuda/grouped_gemm.h"
#include "kernels/gemm/sm80/grouped_tiles.cuh"

namespace nvllm::kernels::cuda {
namespace {

template <typename T, bool kGated>
void launch(const GroupedGemm& grouped, cudaStream_t stream) {
  const GroupedParams<T> p(grouped);
  launch_grouped(tiles::grouped_tiles_kernel<T, kGated>, tiles::kBlocks, tiles::kThreads,
                 tiles::shared_bytes(p.groups), stream, p);
}

template <typename T>
void launch(const GroupedGemm& grouped, cudaStream_t stream) {
  grouped.epilogue == Epilogue::none ? launch<T, false>(grouped, stream)
                                     : launch<T, true>(grouped, stream);
}

}  // namespace

void grouped_tiles(const GroupedGemm& grouped, Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  grouped.weight.format == WeightFormat::bf16 ? launch<Bf16>(grouped, native)
                                              : launch<F16>(grouped, native);
}

}  // namespace nvllm::kernels::cuda
