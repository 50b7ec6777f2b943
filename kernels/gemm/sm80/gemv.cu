#include "device/cuda/stream.h"
#include "kernels/common/cuda_arch.h"
#include "kernels/gemm/backends.h"
#include "kernels/gemm/sm80/gemv.cuh"
#include "kernels/gemm/sm80/gemv_plan.cuh"

namespace nvllm::kernels::cuda {
namespace {

// Every block repeats a fused RMSNorm, which is cheaper than a separate kernel only up to this many
// elements of x, and only if all blocks run at once; but also up to 8 rows if each warp holds its
// part of them in registers.
constexpr std::int64_t kMaxNormRows = 4, kMaxNormElements = 8192;
constexpr std::int64_t kMaxNormRowsInRegisters = 8;

// --- which instance of the kernel, and the share of outputs per block ----------------------------

template <int... kParameters>
struct InstanceOf;
template <int kTiles, int kSlices, int kWarps, int kBlocks>
struct InstanceOf<kTiles, kSlices, kWarps, kBlocks> {
  static constexpr GemvInstance value{kTiles, kSlices, kWarps, kBlocks};

  template <typename T, Prepare kPrepare, bool kGated, int kMaxRows>
  static auto kernel() {
    return &gemv_kernel<T, kPrepare, kGated, kMaxRows, kTiles, kSlices, kWarps, kBlocks>;
  }
};

using UpTo4Rows =
    GemvChoice<InstanceOf<3, 4, 8, 2>, InstanceOf<3, 4, 16, 1>, InstanceOf<1, 5, 8, 4>,
               InstanceOf<2, 6, 16, 1>, InstanceOf<2, 8, 8, 2>>;
// With more rows 64 blocks of 16 outputs were faster than 43 of 24, with fewer the reverse.
using UpTo8Rows =
    GemvChoice<InstanceOf<3, 4, 8, 2>, InstanceOf<2, 4, 16, 1>, InstanceOf<3, 4, 16, 1>,
               InstanceOf<1, 5, 8, 4>, InstanceOf<2, 6, 16, 1>, InstanceOf<2, 8, 8, 2>>;
using UpTo16Rows =
    GemvChoice<InstanceOf<3, 4, 8, 2>, InstanceOf<1, 4, 16, 1>, InstanceOf<1, 6, 16, 1>,
               InstanceOf<1, 4, 16, 2>, InstanceOf<2, 5, 8, 2>>;
using WithNorm =
    GemvChoice<InstanceOf<3, 4, 8, 2>, InstanceOf<3, 4, 16, 1>, InstanceOf<2, 6, 16, 1>>;
using WithNormAtOnce = GemvChoice<InstanceOf<6, 4, 8, 1>, InstanceOf<3, 4, 8, 2>,
                                  InstanceOf<3, 4, 16, 1>, InstanceOf<2, 6, 16, 1>>;

template <typename Instances>
GemvPlan best_plan(const GemvProblem& gemm, int multiprocessors, int* which) {
  return Instances::best_of(
      [&](const GemvInstance& instance) { return plan_gemv(instance, gemm, multiprocessors); },
      which);
}

// --- launching -----------------------------------------------------------------------------------

template <typename T, Prepare kPrepare, bool kGated, int kMaxRows, typename Instances>
void launch(const GemmParams<T>& p, int multiprocessors, bool early, cudaStream_t stream) {
  int which = 0;
  const GemvProblem gemm{p.outputs, p.inputs, kGated, kSliceInputs};
  const GemvPlan plan = best_plan<Instances>(gemm, multiprocessors, &which);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ceil_div(p.outputs, plan.share)));
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  if (kPrepare == Prepare::norm_in_shared) {
    config.dynamicSmemBytes = normed_shared_bytes(p.rows, p.inputs);
  }
  Instances::with(which, [&](auto instance) {
    config.blockDim = dim3(instance.value.warps * 32);
    const auto kernel = instance.template kernel<T, kPrepare, kGated, kMaxRows>();
    nvllm::cuda::check(cudaLaunchKernelEx(&config, kernel, p, plan.share, plan.loads_all_at_once),
                       "launching a GEMV");
  });
}

GemvProblem problem_of(const GemmShape& shape) {
  const bool gated = shape.fusion.epilogue == Epilogue::gated_activation;
  const auto outputs = static_cast<int>(gated ? shape.outputs / 2 : shape.outputs);
  return {outputs, static_cast<int>(shape.inputs), gated, kSliceInputs};
}

template <typename Instances>
GemvPlan plan_of(const GemmShape& shape, int multiprocessors) {
  int which = 0;
  return best_plan<Instances>(problem_of(shape), multiprocessors, &which);
}

// Calls function.template operator()<kMaxRows, Instances>() for M without prologue.
template <typename Function>
auto with_instances(std::int64_t m, const Function& function) {
  if (m <= 4) return function.template operator()<8, UpTo4Rows>();
  if (m <= 8) return function.template operator()<8, UpTo8Rows>();
  return function.template operator()<16, UpTo16Rows>();
}

}  // namespace

Gemv::Gemv()
    : multiprocessors_(nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount)),
      early_(has_pdl()) {}

bool Gemv::can_implement(const GemmShape& shape) const {
  const Prologue prologue = shape.fusion.prologue;
  return fits_gemv(shape) &&
         (prologue == Prologue::none || (prologue == Prologue::rms_norm && takes_norm(shape)));
}

bool Gemv::norm_in_registers(const GemmShape& shape) const {
  return shape.m <= kMaxNormRowsInRegisters &&
         plan_of<WithNormAtOnce>(shape, multiprocessors_).loads_all_at_once;
}

bool Gemv::takes_norm(const GemmShape& shape) const {
  if (!shape.vectors.norm_weight) return false;
  if (norm_in_registers(shape)) return true;
  const GemvPlan plan = plan_of<WithNorm>(shape, multiprocessors_);
  return plan.all_run && shape.m <= kMaxNormRows && shape.m * shape.inputs <= kMaxNormElements;
}

bool Gemv::loads_all_at_once(const GemmShape& shape) const {
  return with_instances(shape.m, [&]<int, typename Instances>() {
    return plan_of<Instances>(shape, multiprocessors_).loads_all_at_once;
  });
}

template <typename T>
void Gemv::enqueue_as(const GemmCall& call, Stream& stream) const {
  const GemmParams<T> p(call);
  const auto enqueue = [&]<Prepare kPrepare, bool kGated, int kMaxRowsOf, typename Instances>() {
    launch<T, kPrepare, kGated, kMaxRowsOf, Instances>(p, multiprocessors_, early_,
                                                       nvllm::cuda::native(stream));
  };
  const auto enqueue_gated_or_not = [&]<bool kGated>() {
    if (is_normed(call)) {
      if (norm_in_registers(call.plan.shape)) {
        return enqueue.template operator()<Prepare::norm_in_registers, kGated, 8, WithNormAtOnce>();
      }
      return enqueue.template operator()<Prepare::norm_in_shared, kGated, 8, WithNorm>();
    }
    with_instances(p.rows, [&]<int kMaxRowsOf, typename Instances>() {
      enqueue.template operator()<Prepare::nothing, kGated, kMaxRowsOf, Instances>();
    });
  };
  is_gated(call) ? enqueue_gated_or_not.template operator()<true>()
                 : enqueue_gated_or_not.template operator()<false>();
}

void Gemv::enqueue(const GemmCall& call, Stream& stream) const {
  if (call.weight.format == WeightFormat::bf16) return enqueue_as<Bf16>(call, stream);
  enqueue_as<F16>(call, stream);
}

}  // namespace nvllm::kernels::cuda
