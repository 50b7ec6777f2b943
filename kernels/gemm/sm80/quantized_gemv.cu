#include "device/cuda/stream.h"
#include "kernels/gemm/backends.h"
#include "kernels/gemm/sm80/quantized_gemv_launch.cuh"

namespace nvllm::kernels::cuda {
namespace {

constexpr std::int64_t kMaxRows = 16;

// As in gemv.cu: what every block repeats.
constexpr std::int64_t kMaxNormRows = 4, kMaxNormElements = 8192;

GemvPlan plan_of(const GemmShape& shape, bool normed, int multiprocessors) {
  const bool gated = shape.fusion.epilogue == Epilogue::gated_activation;
  return with_format(shape.format, shape.type, [&]<typename T, WeightFormat kFormat>() {
    const bool narrow = is_narrow(kFormat, shape.group);
    const QuantizedGemvProblem gemm{static_cast<int>(gated ? shape.outputs / 2 : shape.outputs),
                                    static_cast<int>(shape.inputs),
                                    static_cast<int>(shape.m),
                                    gated,
                                    normed,
                                    kFormat,
                                    unit_of(kFormat, narrow)};
    const auto best = [&]<typename Instances>() {
      int which = 0;
      return best_quantized<Instances>(gemm, multiprocessors, &which);
    };
    if (is_common<T>(narrow)) {
      return with_quantized_instances<QuantizedInstances<is_common<T>(false)>>(shape.m, normed,
                                                                               best);
    }
    return with_quantized_instances<QuantizedInstances<false>>(shape.m, normed, best);
  });
}

}  // namespace

QuantizedGemv::QuantizedGemv()
    : multiprocessors_(nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount)),
      early_(nvllm::cuda::device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9) {}

bool QuantizedGemv::takes(const GemmShape& shape) const {
  const GemmFusion& fusion = shape.fusion;
  if (!is_quantized(shape.format) || shape.type == DType::f32) return false;
  if (shape.m > kMaxRows || shape.inputs == 0) return false;
  if (fusion.epilogue == Epilogue::gated_activation && fusion.activation != Activation::silu)
    return false;
  if (!shape.vectors.weight || !shape.vectors.x) return false;
  return fusion.prologue == Prologue::none ||
         (fusion.prologue == Prologue::rms_norm && takes_norm(shape));
}

bool QuantizedGemv::takes_norm(const GemmShape& shape) const {
  const std::int64_t slice = shape.format == WeightFormat::int4 ? 128 : 64;
  return shape.vectors.norm_weight && shape.inputs % slice == 0 && shape.m <= kMaxNormRows &&
         shape.m * shape.inputs <= kMaxNormElements &&
         plan_of(shape, true, multiprocessors_).all_run;
}

bool QuantizedGemv::loads_all_at_once(const GemmShape& shape) const {
  return plan_of(shape, false, multiprocessors_).loads_all_at_once;
}

void QuantizedGemv::enqueue(const GemmCall& call, Stream& stream) const {
  const GemvDevice device{multiprocessors_, early_};
  with_format(call.weight.format, call.weight.type(), [&]<typename T, WeightFormat kFormat>() {
    enqueue_quantized_gemv<T, kFormat>(call, device, nvllm::cuda::native(stream));
  });
}

}  // namespace nvllm::kernels::cuda
