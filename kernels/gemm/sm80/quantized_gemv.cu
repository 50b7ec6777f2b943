#include "device/cuda/stream.h"
#include "kernels/common/cuda_arch.h"
#include "kernels/gemm/backends.h"
#include "kernels/gemm/sm80/quantized_gemv_launch.cuh"
#include "kernels/gemm/sm90/quantized_gemv.h"

namespace nvllm::kernels::cuda {
namespace {

constexpr std::int64_t kMaxRows = 16;

// Limits of the norm that every block repeats.
constexpr std::int64_t kMaxNormRows = 8, kMaxNormElements = 12288;

QuantizedGemvPlan plan_of(const GemmShape& shape, bool normed, const GemvDevice& device) {
  return with_format(shape.format, shape.type, [&]<typename T, WeightFormat kFormat>() {
    return with_variant(shape, [&]<bool kNarrow, int kMaxRows>() {
      using Instances = typename QuantizedInstances<is_common<T>(kNarrow), kFormat, kMaxRows>::All;
      int which = 0;
      return best_plan<Instances>(problem_of(shape, normed), device, &which);
    });
  });
}

}  // namespace

QuantizedGemv::QuantizedGemv()
    : multiprocessors_(nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount)),
      shared_bytes_(nvllm::cuda::device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor)),
      early_(has_pdl()) {}

GemvDevice QuantizedGemv::device() const {
  return {multiprocessors_, shared_bytes_, early_};
}

bool QuantizedGemv::can_implement(const GemmShape& shape) const {
  const GemmFusion& fusion = shape.fusion;
  if (!is_quantized(shape.format) || shape.type == DType::f32) return false;
  if (shape.m > kMaxRows || shape.inputs == 0) return false;
  if (fusion.epilogue == Epilogue::gated_activation && fusion.activation != Activation::silu)
    return false;
  if (!shape.vectors.weight || !shape.vectors.x) return false;
  if (fusion.prologue == Prologue::none) return plan_of(shape, false, device()).exists();
  return fusion.prologue == Prologue::rms_norm && takes_norm(shape);
}

bool QuantizedGemv::takes_norm(const GemmShape& shape) const {
  const std::int64_t slice = block_inputs_of(shape.format);
  return shape.vectors.norm_weight && shape.inputs % slice == 0 && shape.m <= kMaxNormRows &&
         shape.m * shape.inputs <= kMaxNormElements && plan_of(shape, true, device()).exists();
}

bool QuantizedGemv::loads_all_at_once(const GemmShape& shape) const {
  return plan_of(shape, false, device()).grid.early;
}

void QuantizedGemv::enqueue(const GemmCall& call, Stream& stream) const {
  if (enqueue_bulk_gemv(call, multiprocessors_, nvllm::cuda::native(stream))) return;
  with_format(call.weight.format, call.weight.type(), [&]<typename T, WeightFormat kFormat>() {
    enqueue_quantized_gemv<T, kFormat>(call, device(), nvllm::cuda::native(stream));
  });
}

}  // namespace nvllm::kernels::cuda
