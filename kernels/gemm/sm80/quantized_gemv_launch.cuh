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

// --- the plan ------------------------------------------------------------------------------------

struct QuantizedGemvProblem {
  int outputs = 0, inputs = 0, rows = 0;  // outputs: of gates, of which each comes with another
  bool gated = false, normed = false;
  WeightFormat format = WeightFormat::fp8;
  int unit = 0;

  int slice_inputs() const { return format == WeightFormat::int4 ? 128 : 64; }
};

inline int quantized_shared_bytes(const GemvInstance& instance, const QuantizedGemvProblem& gemm) {
  const int units = gemm.slice_inputs() / gemm.unit;
  const int weights = instance.tiles * (kGemvTileOutputs * kGemvSliceBytes + units * 32);
  const int x = gemm.normed ? 0 : gemm.rows * (gemm.slice_inputs() * 2 + 16);
  const int normed = gemm.normed ? normed_shared_bytes(gemm.rows, gemm.inputs) : 0;
  return normed + instance.warps * instance.slices * (weights + x);
}

// The estimate's constants, of a multiprocessor: bytes, and cycles. A warp's work on a slice and
// its start are those of its instructions, four at a time.
inline constexpr int kQuantizedSharedBytes = 224 << 10;
inline constexpr double kBytesPerCycle = 19;             // that the memory gives
inline constexpr double kLatency = 1200, kStart = 2500;  // of the memory; of a block
inline constexpr double kWarpStart = 150, kSlice = 25, kSliceOfTile = 10;
inline constexpr double kNextSlice = 500;  // from a slice to the next one of a warp

inline GemvPlan plan_quantized_gemv(const GemvInstance& instance, const QuantizedGemvProblem& gemm,
                                    int multiprocessors) {
  const int width = gemm.gated ? 2 : 1, max_share = instance.tiles * kGemvTileOutputs / width;
  const int slices = ceil_div(gemm.inputs, gemm.slice_inputs());
  const int of_warp = ceil_div(slices, instance.warps);
  const int sums =
      instance.warps * (gemm.rows <= 8 ? 8 : 16) * instance.tiles * kGemvTileOutputs * 4;
  const int bytes = quantized_shared_bytes(instance, gemm) + sums + 1024;
  const int residents = std::min(instance.blocks, kQuantizedSharedBytes / bytes);
  GemvPlan plan;
  if (residents == 0) return plan;
  plan.share = balanced_share(gemm.outputs, max_share, max_share / 2, multiprocessors);
  const int blocks = ceil_div(gemm.outputs, plan.share);
  plan.all_run = blocks <= residents * multiprocessors;
  plan.loads_all_at_once = plan.all_run && of_warp <= instance.slices;
  // Of the busiest multiprocessor.
  const double own = ceil_div(blocks, multiprocessors);
  const double at_once = std::min<double>(own, residents);
  const double outputs = own * plan.share * width;
  const double in_flight = at_once * plan.share * width * kGemvSliceBytes * instance.warps *
                           std::min(of_warp, instance.slices);
  const double rate = std::min(kBytesPerCycle, in_flight / kLatency);
  const double multiplying =
      own * instance.warps * (of_warp * (kSlice + kSliceOfTile * instance.tiles) + kWarpStart);
  const double cycles = std::max({outputs * slices * kGemvSliceBytes / rate, multiplying,
                                  own / at_once * of_warp * kNextSlice});
  const double best = static_cast<double>(gemm.outputs) * width * slices * kGemvSliceBytes /
                      (kBytesPerCycle * multiprocessors);
  plan.efficiency = best / (cycles + kStart * own / at_once);
  return plan;
}

template <typename Instances>
GemvPlan best_quantized(const QuantizedGemvProblem& gemm, int multiprocessors, int* which) {
  return Instances::best_of(
      [&](const GemvInstance& instance) {
        return plan_quantized_gemv(instance, gemm, multiprocessors);
      },
      which);
}

// --- the instances -------------------------------------------------------------------------------

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
template <bool kCommon>
struct QuantizedInstances {
  using UpTo8Rows = GemvChoice<QuantizedInstance<2, 4, 8, 2>>;
  using UpTo16Rows = GemvChoice<QuantizedInstance<2, 4, 8, 2>>;
  using WithNorm = GemvChoice<QuantizedInstance<2, 4, 8, 2>>;
};
template <>
struct QuantizedInstances<true> {
  using UpTo8Rows = GemvChoice<QuantizedInstance<4, 3, 4, 6>, QuantizedInstance<4, 3, 8, 3>,
                               QuantizedInstance<2, 3, 16, 2>, QuantizedInstance<2, 4, 8, 3>>;
  using UpTo16Rows = GemvChoice<QuantizedInstance<4, 3, 4, 4>, QuantizedInstance<2, 3, 16, 1>>;
  using WithNorm = GemvChoice<QuantizedInstance<4, 3, 8, 3>, QuantizedInstance<2, 4, 8, 3>,
                              QuantizedInstance<6, 2, 8, 2>>;
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
  const QuantizedGemvProblem gemm{p.outputs, p.inputs, p.rows, kGated, kNorm, kFormat, kUnit};
  int which = 0;
  const GemvPlan plan = best_quantized<Instances>(gemm, device.multiprocessors, &which);
  Instances::with(which, [&](auto instance) {
    constexpr GemvInstance kInstance = decltype(instance)::value;
    const auto kernel = instance.template kernel<T, kFormat, kUnit, kNorm, kGated, kMaxRows>();
    const int bytes = quantized_shared_bytes(kInstance, gemm);
    // All ask for all shared memory: to change its size a multiprocessor must be empty, and the
    // next kernel's blocks should find some beside these.
    const auto set = [&](cudaFuncAttribute attribute, int value) {
      nvllm::cuda::check(cudaFuncSetAttribute(kernel, attribute, value), "preparing a GEMV");
    };
    set(cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    set(cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    const LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(p.outputs, plan.share))),
                            dim3(kInstance.warps * 32), static_cast<std::size_t>(bytes)};
    launch_early("launching a GEMV", kernel, shape, stream, p, q, plan.share,
                 plan.loads_all_at_once && device.early);
  });
}

template <typename T, WeightFormat kFormat, bool kNarrow>
void launch_quantized_gemv(const GemmCall& call, const GemvDevice& device, cudaStream_t stream) {
  using All = QuantizedInstances<is_common<T>(kNarrow)>;
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
