// The instances of the GEMV with a quantized weight, and how they are launched.
#pragma once

#include "base/check.h"
#include "device/cuda/stream.h"
#include "kernels/gemm/sm80/gemv_plan.cuh"
#include "kernels/gemm/sm80/quantized_gemv.cuh"

namespace nvllm::kernels::cuda {

struct GemvDevice {
  int multiprocessors;
  bool early;  // kernels may begin before the one before them in the stream has ended
};

template <int kTiles, int kSlices, int kWarps, int kBlocks>
struct QuantizedInstance {
  static constexpr GemvInstance value{kTiles, kSlices, kWarps, kBlocks};

  template <typename T, WeightFormat kFormat, int kUnit, bool kNorm, bool kGated, int kMaxRows>
  static auto kernel() {
    return &quantized_gemv_kernel<T, kFormat, kUnit, kNorm, kGated, kMaxRows, kTiles, kSlices,
                                  kWarps, kBlocks>;
  }
};

// Which instances there are: for the common formats in bfloat16 those that suit the layers of
// models of all sizes, else one or two.
template <WeightFormat kFormat, bool kCommon>
struct QuantizedInstances {
  using UpTo8Rows = GemvChoice<QuantizedInstance<3, 2, 8, 2>, QuantizedInstance<1, 4, 8, 2>>;
  using UpTo16Rows = GemvChoice<QuantizedInstance<3, 2, 8, 2>>;
  using WithNorm = GemvChoice<QuantizedInstance<3, 2, 8, 2>>;
};
template <>
struct QuantizedInstances<WeightFormat::fp8, true> {
  using UpTo8Rows = GemvChoice<QuantizedInstance<3, 4, 8, 2>, QuantizedInstance<1, 4, 8, 3>,
                               QuantizedInstance<1, 6, 8, 2>, QuantizedInstance<4, 2, 8, 2>>;
  using UpTo16Rows = GemvChoice<QuantizedInstance<3, 4, 8, 2>, QuantizedInstance<1, 4, 8, 2>>;
  using WithNorm = GemvChoice<QuantizedInstance<3, 4, 8, 2>, QuantizedInstance<3, 5, 8, 2>,
                              QuantizedInstance<4, 2, 8, 2>, QuantizedInstance<6, 2, 8, 1>>;
};
template <>
struct QuantizedInstances<WeightFormat::int4, true> {
  using UpTo8Rows = GemvChoice<QuantizedInstance<3, 4, 8, 2>, QuantizedInstance<1, 2, 8, 3>,
                               QuantizedInstance<1, 3, 8, 3>, QuantizedInstance<4, 1, 8, 2>>;
  using UpTo16Rows = GemvChoice<QuantizedInstance<3, 2, 8, 2>, QuantizedInstance<1, 2, 8, 2>>;
  using WithNorm = GemvChoice<QuantizedInstance<3, 4, 8, 2>, QuantizedInstance<3, 3, 8, 2>,
                              QuantizedInstance<4, 1, 8, 2>, QuantizedInstance<6, 1, 8, 1>>;
};

// Units of inputs that have one scale: a whole slice, or as few as there are groups of.
constexpr int unit_of(WeightFormat format, bool narrow) {
  if (format == WeightFormat::int4) return narrow ? 32 : 128;
  return narrow ? 16 : 64;
}
constexpr bool is_narrow(WeightFormat format, std::int64_t group) {
  return group < unit_of(format, false);
}

// Calls function.template operator()<Instances>() with those for M.
template <typename All, typename Function>
auto with_quantized_instances(std::int64_t m, bool normed, const Function& function) {
  if (normed) return function.template operator()<typename All::WithNorm>();
  if (m <= 8) return function.template operator()<typename All::UpTo8Rows>();
  return function.template operator()<typename All::UpTo16Rows>();
}

// Calls function.template operator()<T, kFormat>() with a weight's, if it is quantized.
template <typename Function>
auto with_format(WeightFormat format, DType type, const Function& function) {
  const auto with_type = [&]<WeightFormat kFormat>() {
    return type == DType::bf16 ? function.template operator()<Bf16, kFormat>()
                               : function.template operator()<F16, kFormat>();
  };
  switch (format) {
    case WeightFormat::fp8: return with_type.template operator()<WeightFormat::fp8>();
    case WeightFormat::int8: return with_type.template operator()<WeightFormat::int8>();
    default: return with_type.template operator()<WeightFormat::int4>();
  }
}
template <typename T>
constexpr bool is_common(bool narrow) {
  return kIsBf16<T> && !narrow;
}

template <typename T, WeightFormat kFormat, int kUnit, bool kNorm, bool kGated, int kMaxRows,
          typename Instances>
void launch_quantized_gemv(const GemmCall& call, const GemvDevice& device, cudaStream_t stream) {
  const GemmParams<T> p(call);
  const QuantizedOperand q(call.weight);
  constexpr int kInputs = kBlockInputs<kFormat>;
  int which = 0;
  const GemvPlan plan =
      Instances::best({p.outputs, p.inputs, kGated, kInputs}, device.multiprocessors, &which);
  Instances::with(which, [&](auto instance) {
    constexpr GemvInstance kInstance = decltype(instance)::value;
    const auto kernel = instance.template kernel<T, kFormat, kUnit, kNorm, kGated, kMaxRows>();
    const int bytes = kNorm
                          ? normed_shared_bytes(p.rows, p.inputs)
                          : p.rows * kInstance.warps * staged_row_bytes(kInstance.slices, kInputs);
    nvllm::cuda::check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "preparing a GEMV");
    const LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(p.outputs, plan.share))),
                            dim3(kInstance.warps * 32), static_cast<std::size_t>(bytes)};
    launch_early("launching a GEMV", kernel, shape, stream, p, q, plan.share,
                 plan.loads_all_at_once && device.early);
  });
}

template <typename T, WeightFormat kFormat, bool kNarrow>
void launch_quantized_gemv(const GemmCall& call, const GemvDevice& device, cudaStream_t stream) {
  using All = QuantizedInstances<kFormat, is_common<T>(kNarrow)>;
  constexpr int kUnit = unit_of(kFormat, kNarrow);
  const auto launch = [&]<bool kNorm, bool kGated, int kMaxRows, typename Instances>() {
    launch_quantized_gemv<T, kFormat, kUnit, kNorm, kGated, kMaxRows, Instances>(call, device,
                                                                                 stream);
  };
  const auto gated_or_not = [&]<bool kGated>() {
    if (is_normed(call)) {
      launch.template operator()<true, kGated, 8, typename All::WithNorm>();
    } else if (x_of(call).shape[0] <= 8) {
      launch.template operator()<false, kGated, 8, typename All::UpTo8Rows>();
    } else {
      launch.template operator()<false, kGated, 16, typename All::UpTo16Rows>();
    }
  };
  is_gated(call) ? gated_or_not.template operator()<true>()
                 : gated_or_not.template operator()<false>();
}

// Enqueues a GEMV. Each is compiled in a file of its format.
template <typename T, WeightFormat kFormat>
void enqueue_quantized_gemv(const GemmCall& call, const GemvDevice& device, cudaStream_t stream);

#define NVLLM_DEFINE_QUANTIZED_GEMV(T, format)                                           \
  template <>                                                                            \
  void enqueue_quantized_gemv<T, WeightFormat::format>(                                  \
      const GemmCall& call, const GemvDevice& device, cudaStream_t stream) {             \
    if (is_narrow(WeightFormat::format, call.weight.quantized.group))                    \
      return launch_quantized_gemv<T, WeightFormat::format, true>(call, device, stream); \
    launch_quantized_gemv<T, WeightFormat::format, false>(call, device, stream);         \
  }

}  // namespace nvllm::kernels::cuda
