// GEMVs with a quantized weight: the instances of their kernel (quantized_gemv.cuh), a plan that
// estimates the time of each, and their launch.
#include <algorithm>

#include "device/cuda/stream.h"
#include "kernels/common/cuda_arch.h"
#include "kernels/gemm/backends.h"
#include "kernels/gemm/sm80/gemv_plan.cuh"
#include "kernels/gemm/sm80/quantized_gemv.cuh"
#include "kernels/gemm/sm90/entry_points.h"

namespace nvllm::kernels::cuda {

struct GemvDevice {
  int multiprocessors, shared_bytes;  // of a multiprocessor
  bool early;  // kernels may start before the previous one in the stream has ended
};

namespace {

// --- the plan ------------------------------------------------------------------------------------

struct QuantizedGemvProblem {
  int outputs = 0, inputs = 0, rows = 0;  // outputs: gate rows if gated, each paired with an up row
  bool gated = false, normed = false;
  WeightFormat format = WeightFormat::fp8;

  int slice_inputs() const { return block_inputs_of(format); }
  int slices() const { return ceil_div(inputs, slice_inputs()); }
  int width() const { return gated ? 2 : 1; }
  bool has_factors() const { return takes_factors(normed, gated); }
};

// splits: warps that share the inputs of an output; slices: in flight per warp.
struct QuantizedGemvInstance {
  int splits, slices, warps;

  int groups() const { return warps / splits; }
};

struct QuantizedGemvPlan {
  QuantizedGemvGrid grid{};
  Staging staging = Staging::ring;
  int shared_bytes = 0;
  double cycles = 1e18;  // an estimate

  bool exists() const { return grid.share > 0; }
  bool better_than(const QuantizedGemvPlan& other) const {
    return exists() && cycles < other.cycles;
  }
};

// Shared memory in hundredths of the multiprocessor's L1 and shared memory. The rest is L1 cache,
// through which loads pass: if it is small, they do not reach the memory bandwidth.
constexpr int kCarveout = 60;
// The maximum size of x that is staged completely in shared memory.
constexpr int kMaxStagedBytes = 160 << 10;
constexpr int kReservedBytes = 1024;  // of shared memory

// `free`: bytes of shared memory.
Staging staging_of(const QuantizedGemvProblem& gemm, int free) {
  if (gemm.normed) return Staging::normed;
  const bool whole = gemm.inputs % gemm.slice_inputs() == 0;
  const int bytes = staged_bytes(gemm.rows, gemm.inputs, false, gemm.has_factors());
  return whole && bytes <= std::min(kMaxStagedBytes, free) ? Staging::all : Staging::ring;
}

// Constants of the estimate, fitted to measurements of 100 GEMMs on an H200: bytes and cycles.
constexpr double kBytesPerCycle = 17.6, kLatency = 1060;  // of the memory
constexpr double kWarpStart = 30, kPassEnd = 83;
// Cycles of a slice: multiprocessor throughput, and minimum latency of a warp.
struct SliceCycles {
  double throughput, latency;
};
constexpr SliceCycles slice_cycles(WeightFormat format) {
  return format == WeightFormat::int4 ? SliceCycles{47, 107} : SliceCycles{12.5, 403};
}
constexpr double kStagedBytesPerCycle = 33, kRingFactor = 2.6;
constexpr double kOverlap = 0.71;  // of the shorter phase

QuantizedGemvPlan plan_quantized_gemv(const QuantizedGemvInstance& instance,
                                      const QuantizedGemvProblem& gemm, const GemvDevice& device) {
  QuantizedGemvPlan plan;
  const int sums = 2 * instance.warps * (gemm.rows <= 8 ? 8 : 16) * kSumStride * 4;
  const int free = device.shared_bytes - sums - kReservedBytes;
  plan.staging = staging_of(gemm, free);
  const bool ring = plan.staging == Staging::ring;
  const int slice_row_bytes = gemm.slice_inputs() * 2 + 16;
  plan.shared_bytes = ring ? instance.warps * instance.slices * gemm.rows * slice_row_bytes
                           : staged_bytes(gemm.rows, gemm.inputs, gemm.normed, gemm.has_factors());
  if (plan.shared_bytes > free) return plan;
  // All blocks have about equally much to do, and so do the passes of a group.
  const int share = ceil_div(gemm.outputs, device.multiprocessors);
  const int max_pass = kPassOutputs / gemm.width();
  const int passes = ceil_div(ceil_div(share, max_pass), instance.groups());
  plan.grid.share = share;
  plan.grid.pass = ceil_div(share, passes * instance.groups());
  const int of_warp = ceil_div(gemm.slices(), instance.splits);
  plan.grid.early = device.early && passes == 1 && of_warp <= instance.slices;

  const double slice_bytes = gemm.width() * kGemvSliceBytes;
  const double in_flight =
      instance.warps * plan.grid.pass * slice_bytes * std::min(of_warp, instance.slices);
  const SliceCycles slice = slice_cycles(gemm.format);
  const double reading =
      share * slice_bytes * gemm.slices() / std::min(kBytesPerCycle, in_flight / kLatency);
  const double multiplying = instance.warps * passes * of_warp * slice.throughput;
  const double waiting = passes * (of_warp * slice.latency + kPassEnd);
  const double longest = std::max({reading, multiplying, waiting});
  plan.cycles = longest + (1 - kOverlap) * (reading + multiplying + waiting - longest);
  if (ring) {
    plan.cycles *= kRingFactor;
  } else {
    plan.cycles += gemm.rows * gemm.inputs * 2 / kStagedBytesPerCycle;
  }
  plan.cycles += kWarpStart * instance.warps;
  return plan;
}

// --- the instances -------------------------------------------------------------------------------

template <int kSplits, int kSlices, int kWarps>
struct QuantizedInstance {
  static constexpr QuantizedGemvInstance value{kSplits, kSlices, kWarps};

  template <typename T, WeightFormat kFormat, int kUnit, Staging kStaging, bool kGated,
            int kMaxRows>
  static auto kernel() {
    return &quantized_gemv_kernel<T, kFormat, kUnit, kStaging, kGated, kMaxRows, kSplits, kSlices,
                                  kWarps>;
  }
};

template <typename Instances>
QuantizedGemvPlan best_plan(const QuantizedGemvProblem& gemm, const GemvDevice& device,
                            int* which) {
  return Instances::best_of(
      [&](const QuantizedGemvInstance& instance) {
        return plan_quantized_gemv(instance, gemm, device);
      },
      which);
}

// Inputs with one scale: a whole slice, or the smallest group size.
constexpr int unit_of(WeightFormat format, bool narrow) {
  if (format == WeightFormat::int4) return narrow ? 32 : 128;
  return narrow ? 16 : 64;
}
constexpr bool is_narrow(WeightFormat format, std::int64_t group) {
  return group < unit_of(format, false);
}

// Calls function.template operator()<T, kFormat>() for a quantized weight.
template <typename Function>
auto with_format(WeightFormat format, DType type, const Function& function) {
  const auto with_type = [&]<WeightFormat kFormat>() {
    return type == DType::bf16 ? function.template operator()<Bf16, kFormat>()
                               : function.template operator()<F16, kFormat>();
  };
  switch (format) {
    case WeightFormat::fp8: return with_type.template operator()<WeightFormat::fp8>();
    case WeightFormat::int8: return with_type.template operator()<WeightFormat::int8>();
    case WeightFormat::int4: return with_type.template operator()<WeightFormat::int4>();
    case WeightFormat::mxfp4:
    case WeightFormat::f32:
    case WeightFormat::bf16:
    case WeightFormat::f16: break;
  }
  unexpected_format(format, "quantized GEMV");
}
template <typename T>
constexpr bool is_common(bool narrow) {
  return kIsBf16<T> && !narrow;
}

// Calls function.template operator()<kNarrow, kMaxRows>() for a GEMM.
template <typename Function>
auto with_variant(const GemmShape& shape, const Function& function) {
  const auto with_rows = [&]<bool kNarrow>() {
    return shape.m <= 8 ? function.template operator()<kNarrow, 8>()
                        : function.template operator()<kNarrow, 16>();
  };
  return is_narrow(shape.format, shape.group) ? with_rows.template operator()<true>()
                                              : with_rows.template operator()<false>();
}
QuantizedGemvProblem problem_of(const GemmShape& shape, bool normed) {
  const bool gated = shape.fusion.epilogue == Epilogue::gated_activation;
  return {static_cast<int>(gated ? shape.outputs / 2 : shape.outputs),
          static_cast<int>(shape.inputs),
          static_cast<int>(shape.m),
          gated,
          normed,
          shape.format};
}

// The instances by format and rows: for the common formats in bfloat16 those that suit the layers
// of models of all sizes, otherwise one or two.
template <bool kCommon, WeightFormat kFormat, int kMaxRows>
struct QuantizedInstances {
  using All = GemvChoice<QuantizedInstance<8, 2, 16>>;
};
template <WeightFormat kFormat>
struct QuantizedInstances<true, kFormat, 8> {
  using All = GemvChoice<QuantizedInstance<8, 3, 16>, QuantizedInstance<16, 3, 16>,
                         QuantizedInstance<8, 3, 24>, QuantizedInstance<8, 2, 32>,
                         QuantizedInstance<16, 2, 32>>;
};
template <>
struct QuantizedInstances<true, WeightFormat::int4, 8> {
  using All = GemvChoice<QuantizedInstance<4, 3, 16>, QuantizedInstance<8, 3, 16>,
                         QuantizedInstance<16, 2, 16>, QuantizedInstance<10, 2, 20>,
                         QuantizedInstance<4, 3, 24>, QuantizedInstance<8, 3, 24>>;
};
template <WeightFormat kFormat>
struct QuantizedInstances<true, kFormat, 16> {
  using All = GemvChoice<QuantizedInstance<8, 3, 16>, QuantizedInstance<16, 2, 16>>;
};

template <typename T, WeightFormat kFormat, int kUnit, Staging kStaging, bool kGated, int kMaxRows,
          typename Instance>
void launch_quantized_gemv(const GemmCall& call, const QuantizedGemvPlan& plan,
                           cudaStream_t stream) {
  const GemmParams<T> p(call);
  const QuantizedOperand q(call.weight);
  const auto kernel = Instance::template kernel<T, kFormat, kUnit, kStaging, kGated, kMaxRows>();
  const auto set = [&](cudaFuncAttribute attribute, int value) {
    nvllm::cuda::check(cudaFuncSetAttribute(kernel, attribute, value), "preparing a GEMV");
  };
  set(cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_bytes);
  set(cudaFuncAttributePreferredSharedMemoryCarveout, kCarveout);
  const LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(p.outputs, plan.grid.share))),
                          dim3(Instance::value.warps * 32),
                          static_cast<std::size_t>(plan.shared_bytes)};
  launch_with_pdl("launching a GEMV", kernel, shape, stream, p, q, plan.grid);
}

template <typename T, WeightFormat kFormat, bool kNarrow, int kMaxRows>
void launch_quantized_gemv(const GemmCall& call, const GemvDevice& device, cudaStream_t stream) {
  using Instances = typename QuantizedInstances<is_common<T>(kNarrow), kFormat, kMaxRows>::All;
  constexpr int kUnit = unit_of(kFormat, kNarrow);
  int which = 0;
  const QuantizedGemvPlan plan =
      best_plan<Instances>(problem_of(call.plan.shape, is_normed(call)), device, &which);
  Instances::with(which, [&](auto instance) {
    const auto launch = [&]<Staging kStaging, bool kGated>() {
      launch_quantized_gemv<T, kFormat, kUnit, kStaging, kGated, kMaxRows, decltype(instance)>(
          call, plan, stream);
    };
    const auto gated_or_not = [&]<Staging kStaging>() {
      is_gated(call) ? launch.template operator()<kStaging, true>()
                     : launch.template operator()<kStaging, false>();
    };
    if (plan.staging == Staging::ring) return gated_or_not.template operator()<Staging::ring>();
    if (plan.staging == Staging::all) return gated_or_not.template operator()<Staging::all>();
    if constexpr (kMaxRows == 8) gated_or_not.template operator()<Staging::normed>();
  });
}

// --- the kernel class ----------------------------------------------------------------------------

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
    with_variant(call.plan.shape, [&]<bool kNarrow, int kMaxRows>() {
      launch_quantized_gemv<T, kFormat, kNarrow, kMaxRows>(call, device(),
                                                           nvllm::cuda::native(stream));
    });
  });
}

}  // namespace nvllm::kernels::cuda
