// Gemm: matrix multiplications by a model's weights, with fused prologues and epilogues.
//
// A GEMM is planned, then run. The plan names the kernel and the prologue and epilogue that are
// fused into it; it is decided here, once per weight, number of rows (M) and GPU. Callers state
// only the operation:
//
//   const auto gemm = create_gemm(*backend);
//   const GemmCall call = gemm->call({.values = w, .bias = b}, {.out = q, .x = hidden});
//   gemm->run(call, *stream);
//
// Gemm also runs grouped GEMMs, of groups of rows with a weight each, and segmented GEMMs, whose
// sums are taken in segments of the inputs; they have no plan that callers see.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "device/backend.h"
#include "device/tensor_view.h"
#include "kernels/gemm/kv_prefetch.h"
#include "kernels/gemm/quantized_weight.h"
#include "kernels/gemm/small_m_plan.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/pointwise/tree_sum.h"
#include "kernels/sampling/sampling.h"

namespace nvllm::kernels {

// Throws an Error for a type that no weight has.
WeightFormat format_of(DType type);

// Values and bias are constants: kernels read them before the previously enqueued work has ended.
// Whoever writes them must wait for that (Stream::synchronize) before the first GEMM. The same
// holds for the weights of norms.
struct GemmWeight {
  // [outputs, inputs], dense, as checkpoints hold it; or the bytes of a quantized weight
  // (quantized_weight.h).
  TensorView values;
  TensorView bias{};  // [outputs]; data == nullptr: none
  WeightFormat format = format_of(values.dtype);
  // This is one rank's part of a weight, and for some number of ranks some rank's part has a number
  // of outputs that is not a multiple of 8. An invariant GEMM (GemmOptions) then uses the kernel
  // for such parts on every rank, since no output may depend on how many others there are.
  bool unaligned_shards = false;

  // Only for quantized weights.
  struct Quantized {
    TensorView scales{};
    std::int64_t inputs = 0, group = 0;
    DType type = DType::bf16;  // of x, bias and residual
    // x is not quantized. Otherwise a kernel may quantize its rows, where that is faster.
    bool weight_only = false;
    // Each aligned group of 128 outputs shares its scales (fp8).
    bool blocks = false;
  } quantized{};

  std::int64_t outputs() const { return values.shape[0]; }
  std::int64_t inputs() const { return is_quantized(format) ? quantized.inputs : values.shape[1]; }
  DType type() const { return is_quantized(format) ? quantized.type : values.dtype; }
  QuantizedShape quantized_shape() const {
    return {format, outputs(), quantized.inputs, quantized.group};
  }
  // The part for `count` outputs from `first` on, of a weight without bias.
  GemmWeight part(std::int64_t first, std::int64_t count) const;
};

// Applied to x first, with exactly the roundings of the separate operation
// (kernels/pointwise/rmsnorm.h, elementwise.h). The first half of a deferred RMSNorm is in the
// epilogue of the GEMM that produces the rows, the second half in the GEMM that reads them: the
// latter only needs one factor per row, and no separate pass over the rows.
enum class Prologue : std::uint8_t { none, rms_norm, deferred_rms_norm, gated_activation };

// Applied to the result: nothing, or a gated activation of gate rows, then up rows.
enum class Epilogue : std::uint8_t { none, gated_activation };

// A deferred RMSNorm of rows, as left by the GEMM that produces them.
struct DeferredNorm {
  TensorView weighted;  // [M, columns], dense: the rows times the norm's weight, rounded once
  // [columns / kSquaresColumns, kSquaresRows], float32: partial sums of each row's squares
  TensorView squares;

  bool exists() const { return squares.data != nullptr; }
};
inline constexpr std::int64_t kSquaresColumns = 64, kSquaresRows = 128;

// The fusion that a caller asks for.
struct GemmFusion {
  Prologue prologue = Prologue::none;  // deferred_rms_norm is chosen by plans, not by callers
  Epilogue epilogue = Epilogue::none;
  Activation activation = Activation::silu;

  auto operator<=>(const GemmFusion&) const = default;
};

// Everything that a plan depends on besides the GPU.
struct GemmShape {
  std::int64_t m = 0, outputs = 0, inputs = 0;
  WeightFormat format = WeightFormat::bf16;
  std::int64_t group = 0;                            // of a quantized weight
  bool weight_only = false;                          // of a quantized weight
  DType type = DType::bf16, out_type = DType::bf16;  // of x, and of out
  bool bias = false, residual = false;
  bool unaligned_shards = false;  // of the weight
  bool deferred = false;          // x's RMSNorm is deferred, and this GEMM may complete it
  bool defer_next = false;        // an RMSNorm of out follows, and may be deferred
  GemmFusion fusion;
  // Which operands are 16-byte aligned and consist of whole 16-byte vectors per row, as most
  // kernels require. An absent operand counts as such.
  struct Vectors {
    bool weight = true, bias = true, x = true, prepared = true, deferred = true, norm_weight = true;
    bool out = true, residual = true, gate_up = true, next = true;
    auto operator<=>(const Vectors&) const = default;
  } vectors;

  auto operator<=>(const GemmShape&) const = default;
};

enum class GemmKernel : std::uint8_t {
  none,            // nothing to compute
  gemv,            // up to 16 rows of 16-bit floats: sm80/gemv.cuh
  invariant_gemv,  // the same with each sum in one chain: sm80/invariant_gemv.cuh
  small_m,         // 17 to 128 rows, Hopper: sm90/small_m.cuh
  quantized_gemv,  // up to 16 rows of 16-bit floats: sm80/quantized_gemv.cuh
  lm_head,         // 17 to 128 rows by an LM-head weight, Hopper: sm90/lm_head.cu
  cublaslt,        // many rows: cublaslt/, autotuned; falls back to dot
  dot,             // the fallback: sm80/dot.cu
  dequantize,      // quantized weights are dequantized into a workspace, for cublaslt or dot
  fp8,             // many rows, quantized to fp8, by fp8 weights, on Hopper: cublaslt/
  cpu,             // cpu/gemm.cc
};

// How one GEMM is computed.
struct GemmPlan {
  GemmShape shape;  // the shape that the plan is for
  GemmKernel kernel = GemmKernel::none;
  Prologue prologue = Prologue::none;
  bool prologue_kernel = false;  // the prologue is a separate kernel before the GEMM
  bool prologue_triggers_early =
      false;  // and that kernel may start before the previous one has ended
  Epilogue epilogue = Epilogue::none;
  bool epilogue_kernel = false;  // the epilogue is a separate kernel
  bool defers_next = false;      // runs the first half of the next RMSNorm
  bool samples = false;          // can sample tokens instead of storing logits (run_and_sample)
  bool kv_prefetch = false;      // prefetches K/V into L2 as it ends
  SmallMTiling tiling;           // only for small_m
};

// out = [residual +] epilogue(prologue(x) · weightᵀ [+ bias])
//
// Sums are accumulated in float32 (in unspecified order) and rounded to out's type once; then again
// when a bias or a residual is added. With bfloat16, subnormal values (below 1.2e-38) may count as
// zero, depending on the processor. All tensors are of one type (float32, bfloat16 or float16),
// except that out may be float32 with any type, and a weight may be quantized. Any number of rows,
// outputs and inputs is allowed, including 0 (with 0 inputs the sum is 0). out and residual may
// have any row stride (stride[0] >= columns), and so may x without prologue; everything else is
// dense.
struct GemmOperands {
  TensorView out;  // [M, outputs]; with a gated activation epilogue [M, outputs / 2]
  TensorView x;    // [M, inputs]; with a gated activation prologue [M, 2 * inputs], gate first
  TensorView residual{};  // [M, outputs], of x's type, may alias out; data == nullptr: none
  struct PrologueOperands {
    TensorView norm_weight{};  // [inputs]
    float epsilon = 1e-6f;
    TensorView prepared{};    // [at least M, inputs]: output of a separate prologue kernel
    DeferredNorm deferred{};  // of x's norm, if deferred; `weighted` may be `prepared`
  } prologue{};
  struct EpilogueOperands {
    TensorView gate_up{};      // [at least M, outputs]: input of a separate activation kernel
    TensorView norm_weight{};  // [outputs], of the next RMSNorm
    DeferredNorm deferred{};   // output of its first half, if the plan defers it
  } epilogue{};
  // K/V that attention will read soon; does not affect the result. Its table and lengths are read
  // at the same time as x.
  KvPrefetch kv_prefetch{};
};

// A GEMM that is ready to run.
struct GemmCall {
  GemmPlan plan;
  GemmWeight weight;
  GemmOperands operands;
};

// The shape of a GEMM of these operands.
GemmShape shape_of(const GemmWeight& weight, const GemmOperands& operands,
                   const GemmFusion& fusion = {});
// The shape of one whose activations are dense and aligned, and which adds no residual.
GemmShape dense_shape_of(const GemmWeight& weight, std::int64_t m, const GemmFusion& fusion = {});

// Whether all rows are vectors of 16 bytes, of 16-bit floats, at multiples of their size, as
// GemmShape::Vectors has it; also of what is absent.
bool whole_vectors(const TensorView& tensor);

// --- grouped and segmented GEMMs -----------------------------------------------------------------

// GEMMs of one shape with their own rows each, like a mixture's experts: rows [start[n], start[n +
// 1]) of x by group n's weight, into the same rows of out. A group without rows costs nothing.
struct GroupedGemm {
  GemmWeight weight;  // of all groups, concatenated: [groups * outputs, inputs]
  // [groups + 1], int32, ascending from 0 to M; read on the device.
  TensorView start;
  TensorView out;  // [M, outputs], dense; with a gated activation [M, outputs / 2]
  TensorView x;    // [M, inputs], dense; with source_rows [any number, inputs]

  // [M], int32: row n reads row source_rows[n] of x; data == nullptr: row n.
  TensorView source_rows{};
  TensorView gathered{};  // [at least M, inputs]: output of a separate gather kernel

  Epilogue epilogue = Epilogue::none;  // a gated activation has gate rows, then up rows, per group
  Activation activation = Activation::silu;
  float limit = 0;       // GatedActivation::limit
  TensorView gate_up{};  // [at least M, outputs]: input of a separate activation kernel

  std::int64_t m() const { return out.shape[0]; }
  std::int64_t groups() const { return start.shape[0] - 1; }
  std::int64_t outputs() const { return weight.outputs() / groups(); }
};

// The parts of a grouped GEMM that its kernel fuses; separate kernels run the rest.
struct GroupedFusion {
  bool gather = false, epilogue = false;
};

// A GEMM over segments of the inputs: out = the sum over segments of x · weightᵀ, each a separate
// GEMM with a float32 result, added in the order of `sum` [+ bias] and rounded once.
struct SegmentedGemm {
  // All segments, concatenated: [segments * outputs, inputs per segment], without bias.
  GemmWeight weight;
  TensorView x;  // [M, segments * inputs per segment]; any row stride
  // out: [M, outputs]. Its sources, blocks 0, 1, ..., are memory where the segments' results may be
  // stored.
  TreeSum sum;

  std::int64_t segments() const { return sum.count; }
  std::int64_t m() const { return sum.out.shape[0]; }
  std::int64_t outputs() const { return sum.out.shape[1]; }
  // The GEMM of one segment.
  GemmWeight weight_of(std::int64_t segment) const;
  GemmOperands operands_of(std::int64_t segment) const;
};

// --- running GEMMs -------------------------------------------------------------------------------

// Autotuning results as text. Key: what a result is valid for (the device, its libraries, a GEMM's
// shape and M); value: how such GEMMs are computed.
using GemmConfigurations = std::map<std::string, std::string>;

// The GEMMs of one rank, with the handles, tuned configurations and workspaces that persist between
// calls. Not thread-safe, and for one stream at a time.
class Gemm {
 public:
  virtual ~Gemm() = default;

  // How a GEMM is computed; a pure function of the shape. Cheap.
  const GemmPlan& plan(const GemmShape& shape);

  // Plans the GEMM of these operands.
  GemmCall call(const GemmWeight& weight, const GemmOperands& operands,
                const GemmFusion& fusion = {});

  // Enqueues the GEMM without allocation or synchronization; may be captured in a graph. Throws an
  // Error that names an operand that does not fit.
  void run(const GemmCall& call, Stream& stream);
  // Enqueues the GEMM with sampling as its epilogue: the tokens are those of run() and
  // sample_tokens(), but sample.rows.logits, which are call's out, are undefined afterwards.
  // Requires plan.samples and samples_in_epilogue().
  void run_and_sample(const GemmCall& call, const SampleTokens& sample, Stream& stream);

  // Enqueues the GEMM like run(). Not tuned. On the CPU a row's sums are those of run() with as
  // many rows as its group has; on GPUs they depend on M (which selects the kernel), but neither on
  // a row's group nor on its index there.
  void run_grouped(const GroupedGemm& grouped, Stream& stream);

  // Enqueues both like run_grouped(), with the same bits: an MLP, where down.x is gate_up.out. The
  // contents of that tensor are private to this call and may be in another format.
  void run_grouped_mlp(const GroupedGemm& gate_up, const GroupedGemm& down, Stream& stream);

  // Enqueues the GEMM like run() and tree_sum(), with the same bits.
  void run_segmented(const SegmentedGemm& gemm, Stream& stream);

  // From now on run() records its calls, until tune_recorded() tunes them, those of one shape
  // together. Their tensors must still exist then.
  void record();
  void tune_recorded(Stream& stream);

  // Chooses the fastest configuration for GEMMs like these, of which there is at least one, with
  // about as many rows, by measurement where that is worth it and has not been done. They differ
  // only in the addresses of their tensors; ideally they are those of all layers. Optional. May
  // allocate and waits for the stream. Only the operands `out`, `prepared` and `gate_up` are
  // overwritten.
  void tune(std::span<const GemmCall> alike, Stream& stream);

  // The results of tuning.
  virtual GemmConfigurations configurations() const { return {}; }
  // Adopts results of earlier runs, here or elsewhere; call before the first GEMM. Entries that do
  // not apply here, or are invalid, are ignored.
  virtual void adopt(GemmConfigurations /*configurations*/) {}
  // How many of those may apply here. May wait for libraries to be loaded.
  virtual std::size_t known() { return 0; }

 protected:
  // A pure function of the shape, which is not empty, and of the device. m is at most kManyRows.
  virtual GemmPlan make_plan(const GemmShape& shape) = 0;
  // Takes checked operands.
  virtual void enqueue(const GemmCall& call, Stream& stream) = 0;
  virtual void enqueue_sampling(const GemmCall& call, const SampleTokens& sample, Stream& stream);
  // Takes a checked grouped GEMM; throws an Error if this backend has no kernel for it.
  virtual GroupedFusion fused_in(const GroupedGemm& grouped) = 0;
  // Takes checked operands, with rows and outputs; runs only the fused parts.
  virtual void enqueue_grouped(const GroupedGemm& grouped, Stream& stream) = 0;
  // Runs both as one, if the backend can; otherwise returns false. Operands are checked, and there
  // are rows.
  virtual bool enqueue_grouped_mlp(const GroupedGemm& gate_up, const GroupedGemm& down,
                                   Stream& stream);
  // Takes checked operands, with rows and outputs; returns false if the backend has no kernel for
  // it.
  virtual bool enqueue_segmented(const SegmentedGemm& gemm, Stream& stream);
  virtual void measure(std::span<const GemmCall> alike, Stream& stream) = 0;

 private:
  static void check(const GemmCall& call);

  // Identifies GEMMs that are tuned together: M, outputs, inputs, the weight's format and group,
  // whether x keeps its type, prologue, epilogue, whether there is a residual.
  using TuningKey = std::tuple<std::int64_t, std::int64_t, std::int64_t, WeightFormat, std::int64_t,
                               bool, Prologue, Epilogue, bool>;

  std::map<GemmShape, GemmPlan> plans_;
  bool recording_ = false;
  std::map<TuningKey, std::vector<GemmCall>> recorded_;
};

// Plans are the same for all M from here on.
inline constexpr std::int64_t kManyRows = 129;

// Whether a GEMM's epilogue supports this sampling: from unmodified logits.
bool samples_in_epilogue(const SampleTokens& sample);

struct GemmOptions {
  // Quantized weights are expected: their memory is allocated at once instead of later.
  bool quantized = false;
  // A row's bits depend only on that row and the weight: not on M, nor on which kernel was fastest
  // on this GPU. Each sum is then one chain over K in steps of 16 inputs, which wgmma and
  // cuBLASLt's algorithms without split K have in common; no norm is deferred, and no autotuned
  // configuration splits K. What some of these kernels cannot compute falls back to `dot`.
  // Quantized weights have the bits of the dequantized ones, and x is never quantized. A residual
  // must not alias out: cuBLASLt would start its sums from it. (The CPU's GEMMs are always
  // invariant but for quantized weights, of which this option computes many rows as it does few.)
  bool invariant = false;
};
std::unique_ptr<Gemm> create_gemm(Backend& backend, const GemmOptions& options = {});

// Device memory of a Gemm from its creation on. (On the CPU it is allocated as needed.)
std::size_t gemm_bytes(DeviceKind device, bool quantized = false);

// The checks of run(), run_grouped() and run_segmented().
void check_gemm(const GemmCall& call);
void check_grouped_gemm(const GroupedGemm& grouped);
void check_segmented_gemm(const SegmentedGemm& gemm);

}  // namespace nvllm::kernels
