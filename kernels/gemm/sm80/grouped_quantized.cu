#include "kernels/gemm/cuda/grouped_gemm.h"
#include "kernels/gemm/sm80/grouped_quantized.cuh"

namespace nvllm::kernels::cuda {
namespace {

template <typename T, WeightFormat kFormat, int kGroup, int kTiles, int kHalves, bool kGated>
void launch(const GroupedGemm& grouped, cudaStream_t stream) {
  using Ring = quantized_groups::Ring<quantized_groups::Block<kFormat, kGroup>, kTiles, kHalves>;
  const quantized_groups::Params<T> p(grouped);
  launch_grouped(
      quantized_groups::grouped_quantized_kernel<T, kFormat, kGroup, kTiles, kHalves, kGated>,
      quantized_groups::kBlocks, quantized_groups::kWarps * 32, Ring::shared_bytes(p.groups),
      stream, p);
}

template <typename T, WeightFormat kFormat, int kGroup, bool kGated>
void launch(const GroupedGemm& grouped, cudaStream_t stream) {
  // With few rows there are few items; with more than a few per group many groups have more than 8.
  if (4 * grouped.m() <= grouped.groups()) {
    launch<T, kFormat, kGroup, 1, 1, kGated>(grouped, stream);
  } else if (grouped.m() <= 5 * grouped.groups()) {
    launch<T, kFormat, kGroup, 2, 1, kGated>(grouped, stream);
  } else {
    launch<T, kFormat, kGroup, 2, 2, kGated>(grouped, stream);
  }
}

template <typename T, WeightFormat kFormat, int kGroup>
void launch(const GroupedGemm& grouped, cudaStream_t stream) {
  grouped.epilogue == Epilogue::none ? launch<T, kFormat, kGroup, false>(grouped, stream)
                                     : launch<T, kFormat, kGroup, true>(grouped, stream);
}

template <typename T>
void launch(const GroupedGemm& grouped, cudaStream_t stream) {
  const WeightFormat format = grouped.weight.format;
  switch (const std::int64_t group = grouped.weight.quantized.group; format) {
    case WeightFormat::fp8: return launch<T, WeightFormat::fp8, 128>(grouped, stream);
    case WeightFormat::mxfp4: return launch<T, WeightFormat::mxfp4, 32>(grouped, stream);
    case WeightFormat::int8:
      if (group == 16) return launch<T, WeightFormat::int8, 16>(grouped, stream);
      if (group == 32) return launch<T, WeightFormat::int8, 32>(grouped, stream);
      if (group == 64) return launch<T, WeightFormat::int8, 64>(grouped, stream);
      return launch<T, WeightFormat::int8, 128>(grouped, stream);
    case WeightFormat::int4:
      if (group == 32) return launch<T, WeightFormat::int4, 32>(grouped, stream);
      if (group == 64) return launch<T, WeightFormat::int4, 64>(grouped, stream);
      return launch<T, WeightFormat::int4, 128>(grouped, stream);
    case WeightFormat::f32:
    case WeightFormat::bf16:
    case WeightFormat::f16: break;
  }
  unexpected_format(format, "grouped GEMM with quantized weights");
}

}  // namespace

void grouped_quantized(const GroupedGemm& grouped, Stream& stream) {
  const cudaStream_t native = nvllm::cuda::native(stream);
  grouped.weight.type() == DType::bf16 ? launch<Bf16>(grouped, native)
                                       : launch<F16>(grouped, native);
}

}  // namespace nvllm::kernels::cuda
