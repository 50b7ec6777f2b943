#include "kernels/gemm/cuda/grouped_gemm.h"
#include "kernels/gemm/sm90/grouped_small_m.cuh"

namespace nvllm::kernels::cuda {
namespace small_m_grouped {
namespace {

template <WeightFormat kFormat>
int boxes_of(const GroupedGemm& grouped) {
  return static_cast<int>((grouped.weight.inputs() + kBoxInputs<kFormat> - 1) /
                          kBoxInputs<kFormat>);
}

template <WeightFormat kFormat>
int shared_bytes(const GroupedGemm& grouped, int stages) {
  const Layout<kFormat> layout(stages, static_cast<int>(grouped.groups()),
                               boxes_of<kFormat>(grouped));
  return kAlignment + layout.end;
}

// Boxes of a warp's ring: as many as fit. Less than kMinStages: unsupported.
template <WeightFormat kFormat>
int stages_of(const GroupedGemm& grouped) {
  const int room = nvllm::cuda::device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  int stages = kMaxStages;
  while (stages >= kMinStages && shared_bytes<kFormat>(grouped, stages) > room) --stages;
  return stages;
}

template <typename T>
Source source_of(const GroupedGemm& grouped) {
  const GemmWeight& weight = grouped.weight;
  Source source{.values = weight.values.as<const char>(),
                .scales = weight.quantized.scales.as<const unsigned>(),
                .row_bytes = static_cast<int>(weight.inputs() * 2),
                .row_scales = 0,
                .outputs = static_cast<int>(grouped.outputs()),
                .columns = static_cast<int>(grouped.out.shape[1])};
  if (!is_quantized(weight.format)) return source;
  const QuantizedShape shape = weight.quantized_shape();
  source.row_bytes = static_cast<int>(shape.row_bytes());
  source.row_scales = static_cast<int>(shape.scale_columns() *
                                       static_cast<std::int64_t>(size_of(shape.scale_type())) / 4);
  return source;
}

template <typename T, WeightFormat kFormat>
void launch(const GroupedGemm& grouped, bool start_is_visible, cudaStream_t stream) {
  const int stages = stages_of<kFormat>(grouped);
  const Params<T> p{.grouped = GroupedParams<T>(grouped),
                    .weight = source_of<T>(grouped),
                    .boxes = boxes_of<kFormat>(grouped),
                    .stages = stages,
                    .start_is_visible = start_is_visible,
                    .clamps = grouped.activation == Activation::clamped_swiglu,
                    .limit = grouped.limit};
  const auto kernel = grouped.epilogue == Epilogue::none ? grouped_small_m_kernel<T, kFormat, false>
                                                         : grouped_small_m_kernel<T, kFormat, true>;
  launch_grouped(kernel, 1, kThreads, shared_bytes<kFormat>(grouped, stages), stream, p);
}

}  // namespace
}  // namespace small_m_grouped

bool has_room_small_m(const GroupedGemm& grouped) {
  namespace small_m = small_m_grouped;
  switch (grouped.weight.format) {
    case WeightFormat::bf16:
    case WeightFormat::f16:
      return small_m::stages_of<WeightFormat::bf16>(grouped) >= small_m::kMinStages;
    case WeightFormat::fp8:
      return small_m::stages_of<WeightFormat::fp8>(grouped) >= small_m::kMinStages;
    case WeightFormat::mxfp4:
      return small_m::stages_of<WeightFormat::mxfp4>(grouped) >= small_m::kMinStages;
    default: return false;
  }
}

void grouped_small_m(const GroupedGemm& grouped, bool start_is_visible, Stream& stream) {
  namespace small_m = small_m_grouped;
  const cudaStream_t native = nvllm::cuda::native(stream);
  const bool bf16 = grouped.weight.type() == DType::bf16;
  switch (grouped.weight.format) {
    case WeightFormat::fp8:
      return bf16 ? small_m::launch<Bf16, WeightFormat::fp8>(grouped, start_is_visible, native)
                  : small_m::launch<F16, WeightFormat::fp8>(grouped, start_is_visible, native);
    case WeightFormat::mxfp4:
      return bf16 ? small_m::launch<Bf16, WeightFormat::mxfp4>(grouped, start_is_visible, native)
                  : small_m::launch<F16, WeightFormat::mxfp4>(grouped, start_is_visible, native);
    case WeightFormat::f16:
      return small_m::launch<F16, WeightFormat::f16>(grouped, start_is_visible, native);
    default: return small_m::launch<Bf16, WeightFormat::bf16>(grouped, start_is_visible, native);
  }
}

}  // namespace nvllm::kernels::cuda
