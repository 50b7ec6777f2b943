// GEMMs on the GPU: kernel selection with prologues and epilogues.
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "device/cuda/stream.h"
#include "kernels/gemm/backends.h"
#include "kernels/gemm/cublaslt/cublaslt_gemm.h"
#include "kernels/gemm/cuda/grouped_gemm.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_steps.h"
#include "kernels/gemm/sm80/entry_points.h"
#include "kernels/gemm/sm90/entry_points.h"
#include "kernels/pointwise/backends.h"

namespace nvllm::kernels::cuda {
namespace {

// Without tensor cores, up to this many rows are faster when each row reads the weights itself.
constexpr std::int64_t kMaxDotRows = 4;

class CudaGemm final : public Gemm {
 public:
  CudaGemm(Backend& backend, const GemmOptions& options)
      : invariant_(options.invariant),
        cublaslt_(backend, options.invariant),
        quantized_(backend, cublaslt_, options.quantized),
        grouped_(quantized_, options.invariant) {}

  GemmConfigurations configurations() const override { return cublaslt_.configurations(); }
  void adopt(GemmConfigurations configurations) override {
    cublaslt_.adopt(std::move(configurations));
  }
  std::size_t known() override { return cublaslt_.known(); }

 protected:
  // Kernels that fuse the most are tried first: the GEMV with its own norm, the small-M GEMM that
  // completes a deferred norm, the LM head, the small-M GEMM after a separate prologue kernel, and
  // last those without prologue and epilogue.
  GemmPlan make_plan(const GemmShape& shape) override {
    if (shape.format == WeightFormat::mxfp4) {
      fail("gemm: weight is ", name_of(shape.format), ", [", shape.outputs, ", ", shape.inputs,
           "], and dense GEMMs by such weights have no GPU kernel; pass --quantization none");
    }
    if (invariant_) return make_invariant_plan(shape);
    GemmPlan plan;
    plan.prologue = shape.fusion.prologue;
    plan.epilogue = shape.fusion.epilogue;
    if (gemv_takes(shape)) {
      plan.kernel = gemv_of(shape);
      return plan;
    }
    if (shape.deferred && plan.prologue == Prologue::rms_norm) {
      if (const auto tiling = small_m_.plan(shape_with_deferred_norm(shape))) {
        plan.prologue = Prologue::deferred_rms_norm;
        set_small_m(plan, shape, *tiling);
        return plan;
      }
    }
    plan.prologue_kernel = plan.prologue != Prologue::none;
    const GemmShape whole = shape_after_prologue(shape);
    if (lm_head_.can_implement(whole)) {
      plan.kernel = GemmKernel::lm_head;
      plan.prologue_triggers_early = plan.prologue_kernel;
      plan.samples = true;
      return plan;
    }
    plan_own_kernel(plan, whole);
    const bool can_defer = !plan.prologue_kernel && plan.epilogue == Epilogue::none &&
                           plan.kernel == GemmKernel::small_m;
    plan.defers_next = can_defer && shape.defer_next && SmallM::defers_norm(shape);
    return plan;
  }

  void enqueue(const GemmCall& call, Stream& stream) override {
    const void* const residual = call.operands.residual.data;
    NVLLM_CHECK(!invariant_ || residual == nullptr || residual != call.operands.out.data,
                "an invariant GEMM that adds in place");
    if (!makes_fp8_rows(call)) enqueue_prologue(call, stream);
    switch (call.plan.kernel) {
      case GemmKernel::gemv: gemv_.enqueue(call, stream); break;
      case GemmKernel::invariant_gemv: invariant_gemv_.enqueue(call, stream); break;
      case GemmKernel::quantized_gemv: quantized_gemv_.enqueue(call, stream); break;
      case GemmKernel::small_m: small_m_.enqueue(call, fp8_rows_of(call, stream), stream); break;
      case GemmKernel::lm_head: lm_head_.enqueue(call, stream); break;
      case GemmKernel::dequantize:
        invariant_ ? enqueue_dequantized(call, stream) : quantized_.enqueue(call, stream);
        break;
      case GemmKernel::fp8: quantized_.enqueue(call, stream); break;
      case GemmKernel::cublaslt:
        if (!cublaslt_.enqueue(call, stream)) dot(call, stream);
        break;
      default: dot(call, stream);
    }
    if (call.plan.epilogue_kernel) gated_activation(epilogue_activation(call), stream, false);
  }

  void enqueue_sampling(const GemmCall& call, const SampleTokens& sample, Stream& stream) override {
    enqueue_prologue(call, stream);
    lm_head_.enqueue_and_sample(call, sample, stream);
  }

  GroupedFusion fused_in(const GroupedGemm& grouped) override { return grouped_.fused_in(grouped); }

  void enqueue_grouped(const GroupedGemm& grouped, Stream& stream) override {
    grouped_.enqueue(grouped, stream);
  }

  bool enqueue_grouped_mlp(const GroupedGemm& gate_up, const GroupedGemm& down,
                           Stream& stream) override {
    return grouped_.enqueue_mlp(gate_up, down, stream);
  }

  bool enqueue_segmented(const SegmentedGemm& gemm, Stream& stream) override {
    if (!invariant_ || is_quantized(gemm.weight.format) ||
        !all_can_implement(shape_of(gemm.weight_of(0), gemm.operands_of(0)))) {
      return false;
    }
    if (segmented_gemv(gemm, stream)) return true;
    if (!cublaslt_.enqueue_segments(gemm, stream)) return false;
    kernels::tree_sum(gemm.sum, stream);
    return true;
  }

  // Prologues run first: measurements depend slightly on the values of x, through power
  // consumption.
  void measure(std::span<const GemmCall> alike, Stream& stream) override {
    if (alike.front().plan.kernel != GemmKernel::cublaslt) return;
    for (const GemmCall& call : alike) enqueue_prologue(call, stream);
    cublaslt_.tune(alike, stream);
  }

 private:
  bool gemv_takes(const GemmShape& shape) const {
    return gemv_.can_implement(shape) || quantized_gemv_.can_implement(shape);
  }
  static GemmKernel gemv_of(const GemmShape& shape) {
    return is_quantized(shape.format) ? GemmKernel::quantized_gemv : GemmKernel::gemv;
  }

  // Every M has a kernel whose sums are one chain over K in steps of 16 inputs: the LM head's, a
  // GEMV, the small-M GEMM without split K, or cuBLASLt. Shapes that some of them do not support
  // use the one kernel that supports everything. No norm is deferred, since that rounds
  // differently.
  GemmPlan make_invariant_plan(const GemmShape& shape) {
    if (is_quantized(shape.format)) return make_invariant_quantized_plan(shape);
    GemmPlan plan;
    plan.prologue = shape.fusion.prologue;
    plan.epilogue = shape.fusion.epilogue;
    const GemmShape whole = shape_after_prologue(shape);
    if (all_can_implement(whole) && !lm_head_.can_implement(whole, invariant_) &&
        invariant_gemv_.can_implement(shape)) {
      plan.kernel = GemmKernel::invariant_gemv;
      return plan;
    }
    plan.prologue_kernel = plan.prologue != Prologue::none;
    if (!all_can_implement(whole)) {
      plan.epilogue_kernel = plan.epilogue != Epilogue::none;
      plan.kernel = GemmKernel::dot;
      return plan;
    }
    if (lm_head_.can_implement(whole, invariant_)) {
      plan.kernel = GemmKernel::lm_head;
      plan.prologue_triggers_early = plan.prologue_kernel;
      plan.samples = true;
      return plan;
    }
    if (invariant_gemv_.can_implement(whole)) {
      plan.kernel = GemmKernel::invariant_gemv;
      plan.prologue_triggers_early =
          plan.prologue_kernel && loads_early_sm90(whole, multiprocessors_);
      return plan;
    }
    if (!plan_invariant_small_m(plan, whole)) plan.kernel = GemmKernel::cublaslt;
    return plan;
  }

  // Every M has the bits of the dequantized weight: the small-M GEMM without split K dequantizes it
  // in registers; for more rows and other shapes it is dequantized into the workspace, for the
  // kernels of such floats. x is never quantized.
  GemmPlan make_invariant_quantized_plan(const GemmShape& shape) {
    GemmPlan plan;
    plan.prologue = shape.fusion.prologue;
    plan.epilogue = shape.fusion.epilogue;
    plan.prologue_kernel = plan.prologue != Prologue::none;
    GemmShape whole = shape_after_prologue(shape);
    whole.weight_only = true;
    if (all_can_implement(whole) && plan_invariant_small_m(plan, whole)) return plan;
    plan.epilogue_kernel = plan.epilogue != Epilogue::none;
    plan.kernel = GemmKernel::dequantize;
    quantized_.reserve();
    return plan;
  }

  // Returns false if that kernel does not support such a shape. The epilogue is then a kernel of
  // its own.
  bool plan_invariant_small_m(GemmPlan& plan, const GemmShape& whole) {
    std::optional<SmallMTiling> tiling = small_m_.plan(whole, invariant_);
    plan.epilogue_kernel = !tiling && plan.epilogue != Epilogue::none;
    if (plan.epilogue_kernel) tiling = small_m_.plan(shape_before_epilogue(whole), invariant_);
    if (!tiling) return false;
    set_small_m(plan, whole, *tiling);
    plan.prologue_triggers_early = plan.prologue_kernel;
    return true;
  }

  // Each part of the outputs as its own GEMM of floats.
  void enqueue_dequantized(const GemmCall& call, Stream& stream) {
    quantized_.for_dequantized_parts(call, stream, [&](GemmCall part) {
      part.plan = plan(shape_of(part.weight, part.operands));
      enqueue(part, stream);
    });
  }

  // Whether cuBLASLt, too, supports such a GEMM with its sums in one chain, for all parts of its
  // weight. It does not with both a bias and a residual, whose order of addition depends on the
  // algorithm.
  static bool all_can_implement(const GemmShape& shape) {
    const bool adds = shape.bias || shape.residual;
    return shape.type != DType::f32 && shape.vectors.weight && shape.vectors.x &&
           shape.outputs % 8 == 0 && !shape.unaligned_shards && !(shape.bias && shape.residual) &&
           !(adds && shape.out_type != shape.type);
  }

  void set_small_m(GemmPlan& plan, const GemmShape& shape, const SmallMTiling& tiling) {
    if (multiplies_fp8_rows(shape)) quantized_.reserve();
    plan.kernel = GemmKernel::small_m;
    plan.tiling = tiling;
    plan.kv_prefetch = true;
  }

  // For a GEMM whose prologue has run: the kernel that also fuses the epilogue, if there is one.
  void plan_own_kernel(GemmPlan& plan, const GemmShape& whole) {
    auto tiling = small_m_.plan(whole);
    const bool fused = tiling || gemv_takes(whole) || plan.epilogue == Epilogue::none;
    const GemmShape shape = fused ? whole : shape_before_epilogue(whole);
    if (!fused) tiling = small_m_.plan(shape);
    plan.epilogue_kernel = !fused;
    if (tiling) {
      set_small_m(plan, shape, *tiling);
      plan.prologue_triggers_early = plan.prologue_kernel;
    } else if (gemv_takes(shape)) {
      plan.kernel = gemv_of(shape);
      const bool at_once = is_quantized(shape.format) ? quantized_gemv_.loads_all_at_once(shape)
                                                      : gemv_.loads_all_at_once(shape);
      plan.prologue_triggers_early = plan.prologue_kernel && at_once;
    } else if (is_quantized(shape.format)) {
      plan.kernel = quantized_.kernel_of(shape);
    } else {
      const bool few = shape.type == DType::f32 && shape.m <= kMaxDotRows;
      plan.kernel = few ? GemmKernel::dot : GemmKernel::cublaslt;
    }
  }

  // x of a small-M GEMM in fp8, if the kernel multiplies that; otherwise no rows.
  Fp8Rows fp8_rows_of(const GemmCall& call, Stream& stream) {
    if (!multiplies_fp8_rows(call.plan.shape)) return {};
    return quantized_.rows_of(call, call.plan.tiling.tile_m, stream);
  }

  // Whether the GEMM's own kernel reads fp8 rows, which its prologue kernel can write.
  bool makes_fp8_rows(const GemmCall& call) const {
    const bool small_m = call.plan.kernel == GemmKernel::small_m;
    const bool reads =
        call.plan.kernel == GemmKernel::fp8 || (small_m && multiplies_fp8_rows(call.plan.shape));
    return reads && QuantizedGemm::makes_rows(call);
  }

  // Whether a small-M GEMM multiplies x in fp8.
  bool multiplies_fp8_rows(const GemmShape& shape) const {
    return !invariant_ && SmallM::wants_fp8_rows(shape);
  }

  const bool invariant_;
  const int multiprocessors_ = nvllm::cuda::device_attribute(cudaDevAttrMultiProcessorCount);
  const Gemv gemv_;
  const InvariantGemv invariant_gemv_;
  const QuantizedGemv quantized_gemv_;
  SmallM small_m_;
  const LmHead lm_head_;
  CublasltGemm cublaslt_;
  QuantizedGemm quantized_;
  GroupedGemmRunner grouped_;
};

}  // namespace

std::unique_ptr<Gemm> create_gemm(Backend& backend, const GemmOptions& options) {
  return std::make_unique<CudaGemm>(backend, options);
}

}  // namespace nvllm::kernels::cuda
