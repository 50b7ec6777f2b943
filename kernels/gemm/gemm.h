// Gemm: matrix multiplications with a model's weights, and what is fused into them.
//
// A GEMM is planned, then run. The plan says which kernel computes it, and which prologue and
// epilogue that kernel has; it is decided here, once, for a weight, a number of rows (M) and a GPU.
// Callers name only what they want:
//
//   const auto gemm = create_gemm(*backend);
//   const GemmCall call = gemm->call({.values = w, .bias = b}, {.out = q, .x = hidden});
//   gemm->run(call, *stream);
//
// The four GEMMs of a decoder layer are planned together (plan_layer), since what one leaves undone
// another takes up.
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
#include "kernels/pointwise/activation.h"
#include "kernels/pointwise/tree_sum.h"
#include "kernels/sampling/sample_tokens.h"

namespace nvllm::kernels {

// An Error for a type that no weight has.
WeightFormat format_of(DType type);

// Values and bias are constants: kernels read them ahead of the work that is enqueued before
// theirs. Who writes them waits for that (Stream::synchronize) before the first GEMM. The same
// holds for the weights of norms.
struct GemmWeight {
  // [outputs, inputs], dense, as checkpoints hold it; or the bytes of a quantized weight
  // (quantized_weight.h).
  TensorView values;
  TensorView bias{};  // [outputs]; data == nullptr: none
  WeightFormat format = format_of(values.dtype);
  // This is one rank's part of a weight, and some rank, with some number of ranks, may have a part
  // whose outputs are no multiple of 8. An invariant GEMM (GemmOptions) then takes the kernel of
  // such parts, as no output may tell how many there are beside it.
  bool uneven_parts = false;

  // Of quantized weights alone.
  struct Quantized {
    TensorView scales{};
    std::int64_t inputs = 0, group = 0;
    DType type = DType::bf16;  // of x, bias and residual
    // x stays as it is. Otherwise a kernel may quantize its rows, where that is faster.
    bool weight_only = false;
    // Scales are the same for 128 outputs together, from multiples of 128 on (fp8).
    bool blocks = false;
  } quantized{};

  std::int64_t outputs() const { return values.shape[0]; }
  std::int64_t inputs() const { return is_quantized(format) ? quantized.inputs : values.shape[1]; }
  DType type() const { return is_quantized(format) ? quantized.type : values.dtype; }
  QuantizedShape quantized_shape() const {
    return {format, outputs(), quantized.inputs, quantized.group};
  }
};

// What happens to x first, with exactly the roundings of the operation itself
// (kernels/pointwise/rmsnorm.h, activation.h). The first half of a deferred RMSNorm is in the
// epilogue of the GEMM that makes the rows, the second in the one that reads them: that has one
// factor per row to find, and no pass over all rows lies between.
enum class Prologue : std::uint8_t { none, rms_norm, deferred_rms_norm, gated_activation };

// What happens to the result: nothing, or a gated activation, where the first half of the outputs
// are the gates of the second half.
enum class Epilogue : std::uint8_t { none, gated_activation };

// A deferred RMSNorm of rows, as the GEMM that makes them leaves it.
struct DeferredNorm {
  TensorView weighted;  // [M, columns], dense: the rows times the norm's weight, rounded once
  // [columns / kSquaresColumns, kSquaresRows], float32: sums of each row's squares, by columns
  TensorView squares;

  bool exists() const { return squares.data != nullptr; }
};
inline constexpr std::int64_t kSquaresColumns = 64, kSquaresRows = 128;

// What a caller wants done in the same pass.
struct GemmFusion {
  Prologue prologue = Prologue::none;  // deferred_rms_norm is the plan's choice, not the caller's
  Epilogue epilogue = Epilogue::none;
  Activation activation = Activation::silu;

  auto operator<=>(const GemmFusion&) const = default;
};

// All that a plan depends on, beside the GPU.
struct GemmShape {
  std::int64_t m = 0, outputs = 0, inputs = 0;
  WeightFormat format = WeightFormat::bf16;
  std::int64_t group = 0;                            // of a quantized weight
  bool weight_only = false;                          // likewise
  DType type = DType::bf16, out_type = DType::bf16;  // of x, and of out
  bool bias = false, residual = false;
  bool uneven_parts = false;  // of the weight
  bool deferred = false;      // x's RMSNorm is there, deferred, and may be taken up
  bool defer_next = false;    // an RMSNorm of out is wanted next, and may be deferred
  GemmFusion fusion;
  // Which operands are 16-byte aligned rows of whole 16-byte vectors, as most kernels want them. An
  // operand that is absent counts as one.
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
  invariant_gemv,  // the same, each sum in one chain: sm80/invariant_gemv.cuh
  small_m,         // 17 to 128 rows, Hopper: sm90/small_m.cuh
  quantized_gemv,  // up to 16 rows of 16-bit floats: sm80/quantized_gemv.cuh
  lm_head,         // 17 to 128 rows by a vocabulary's weights, Hopper: sm90/lm_head.cuh
  cublaslt,        // many rows: cublaslt/, with the configuration that tuning found; dot where the
                   // library has no algorithm
  dot,             // whatever no other kernel takes: sm80/dot.cu
  dequantize,      // quantized weights become floats in a workspace, for cublaslt or dot
  fp8,             // many rows, which become fp8, too, by fp8 weights, on Hopper: cublaslt/
  cpu,             // cpu/gemm.cc
};

// How one GEMM is computed.
struct GemmPlan {
  GemmShape shape;  // for which it was made
  GemmKernel kernel = GemmKernel::none;
  Prologue prologue = Prologue::none;
  bool prologue_kernel = false;  // the prologue is a kernel of its own, ahead of the GEMM
  bool prologue_early = false;   // which may begin before the kernel ahead of it has ended
  Epilogue epilogue = Epilogue::none;
  bool epilogue_kernel = false;  // the epilogue is a kernel of its own
  bool defers_next = false;      // begins the RMSNorm of its result
  bool samples = false;          // can sample tokens instead of storing logits (run_and_sample)
  bool kv_prefetch = false;      // fetches keys and values into the L2 while it ends
  SmallMTiling tiling;           // of the small-M kernel
};

// out = [residual +] epilogue(prologue(x) · weightᵀ [+ bias])
//
// Sums are taken in float32 (order unspecified) and rounded to out's type once; or again when a
// bias or a residual is added. With bfloat16, subnormal values (below 1.2e-38) may count as zero,
// as processors have it. All tensors are of one type (float32, bfloat16 or float16), but out may be
// float32 whatever the others are, and a weight may be quantized. Any number of rows, outputs and
// inputs, also 0 (with 0 inputs the sum is 0). Rows of x, out and residual may lie apart
// (stride[0] >= columns), those of x only without prologue; everything else is dense.
struct GemmOperands {
  TensorView out;         // [M, outputs]; after a gated activation [M, outputs / 2]
  TensorView x;           // [M, inputs]; before a gated activation [M, 2 * inputs], gate first
  TensorView residual{};  // [M, outputs], of x's type, may be out; data == nullptr: none
  struct PrologueOperands {
    TensorView norm_weight{};  // [inputs]
    float epsilon = 1e-6f;
    TensorView prepared{};    // [at least M, inputs]: where the prologue's own kernel leaves x
    DeferredNorm deferred{};  // of x's norm, if there is one; `weighted` may be `prepared`
  } prologue{};
  struct EpilogueOperands {
    TensorView gate_up{};      // [at least M, outputs]: what the activation's own kernel reads
    TensorView norm_weight{};  // [outputs], of the next RMSNorm
    DeferredNorm deferred{};   // where that is left, if the plan defers it
  } epilogue{};
  // What attention will read soon after; it changes nothing of the result. Its table and lengths
  // are read like x.
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

// GEMMs of one shape with rows of their own, as a mixture's experts have them: the rows
// [start[n], start[n + 1]) of x by group n's weight, into the same rows of out. A group without
// rows costs nothing.
struct GroupedGemm {
  GemmWeight weight;  // of all groups, one after the other: [groups * outputs, inputs]
  // [groups + 1], int32, ascending from 0 to M; read when the work runs.
  TensorView start;
  TensorView out;  // [M, outputs], dense; after a gated activation [M, outputs / 2]
  TensorView x;    // [M, inputs], dense; with source_rows [any number, inputs]

  // [M], int32: row n is x's row source_rows[n]; data == nullptr: row n.
  TensorView source_rows{};
  TensorView gathered{};  // [at least M, inputs]: where a kernel of its own leaves these rows

  Epilogue epilogue = Epilogue::none;  // with a gated activation a group's first half are gates
  Activation activation = Activation::silu;
  float limit = 0;       // GatedActivation::limit
  TensorView gate_up{};  // [at least M, outputs]: what the activation's own kernel reads

  std::int64_t m() const { return out.shape[0]; }
  std::int64_t groups() const { return start.shape[0] - 1; }
  std::int64_t outputs() const { return weight.outputs() / groups(); }
};

// A GEMM whose inputs are in segments: out = the sum over them of x · weightᵀ, each a GEMM of its
// own with a result in float32, added up in the order that `sum` says [+ bias], rounded once.
struct SegmentedGemm {
  // Of all segments, one behind the other: [segments * outputs, inputs of a segment], without bias.
  GemmWeight weight;
  TensorView x;  // [M, segments * inputs of a segment]; rows may lie apart
  // out: [M, outputs]. Its sources, blocks 0, 1, ..., are memory where the segments' results may be
  // left.
  TreeSum sum;

  std::int64_t segments() const { return sum.count; }
  std::int64_t m() const { return sum.out.shape[0]; }
  std::int64_t outputs() const { return sum.out.shape[1]; }
  // The GEMM of one segment.
  GemmWeight weight_of(std::int64_t segment) const;
  GemmOperands operands_of(std::int64_t segment) const;
};

// What of a grouped GEMM its kernel does itself; kernels of their own do the rest.
struct GroupedFusion {
  bool gather = false, epilogue = false;
};

// A decoder layer as its four GEMMs see it.
struct LayerGemms {
  GemmWeight qkv, output, gate_up, down;
  TensorView attention_norm, mlp_norm;  // weights of the norms ahead of qkv and gate_up
  Activation activation = Activation::silu;
  // The MLP is one, of gate_up and down. Otherwise these are not there, and whoever computes it
  // finds no norm deferred.
  bool mlp = true;
};
struct LayerRequest {
  std::int64_t m = 0, mlp_m = 0;  // rows of the attention block and of the MLP block
  int ranks = 1;                  // with several, a collective sums and norms what GEMMs leave
  // So do kernels of their own: of norms that GEMMs do not have, or results that are normed before
  // they are added.
  bool norms_apart = false;
  bool deferred = false;             // the GEMM before has deferred the attention block's norm
  bool may_defer = false;            // there is memory for deferred norms
  const LayerGemms* next = nullptr;  // the layer that reads the result; nullptr: none, or unknown
};
// A gated activation is the gate-up GEMM's epilogue, or else the down GEMM's prologue.
struct LayerPlan {
  GemmPlan qkv, output, gate_up, down;
};

// What tuning chose, as text: by what it holds for (the device, its libraries, a GEMM's shape and a
// number of rows) how such GEMMs are computed.
using GemmConfigurations = std::map<std::string, std::string>;

// The GEMMs of one rank: the handles, tuned configurations and workspaces that they keep between
// calls. Used by one thread and for one stream at a time.
class Gemm {
 public:
  virtual ~Gemm() = default;

  // How a GEMM is computed: always the same for the same shape. Cheap.
  const GemmPlan& plan(const GemmShape& shape);
  LayerPlan plan_layer(const LayerGemms& layer, const LayerRequest& request);

  // Plans the GEMM of these operands.
  GemmCall call(const GemmWeight& weight, const GemmOperands& operands,
                const GemmFusion& fusion = {});

  // Enqueues it: no allocation, no synchronisation; may be captured in a graph. An operand that
  // does not fit is an Error that names it.
  void run(const GemmCall& call, Stream& stream);
  // Enqueues it with sampling as its epilogue: tokens are those of run() and sample_tokens(), but
  // sample.rows.logits, which are call's out, are worth nothing afterwards. Only if plan.samples
  // and samples_in_epilogue().
  void run_and_sample(const GemmCall& call, const SampleTokens& sample, Stream& stream);

  // Enqueues it, as run() does. An operand that does not fit is an Error that names it. Not tuned.
  // On the CPU a row's sums are those of run() with as many rows as its group has; on GPUs they
  // depend on M (which decides the kernel), but neither on a row's group nor on its number there.
  void run_grouped(const GroupedGemm& grouped, Stream& stream);

  // Enqueues both, as run_grouped() does, with the same bits: an MLP, where down.x is gate_up.out.
  // That is this call's own: what is left there may be in another format.
  void run_grouped_mlp(const GroupedGemm& gate_up, const GroupedGemm& down, Stream& stream);

  // Enqueues it, as run() and tree_sum() do, with the same bits. An operand that does not fit is an
  // Error that names it.
  void run_segmented(const SegmentedGemm& gemm, Stream& stream);

  // From now on run() notes its calls, until tune_recorded() tunes them, those of one shape
  // together. Their tensors must still be there then.
  void record();
  void tune_recorded(Stream& stream);

  // Chooses the fastest configuration for GEMMs like these, of which there is at least one, with
  // about as many rows, by measuring where that is worth it and has not been done. They differ in
  // nothing but where their tensors lie; it is best to give those of all layers. Optional. May
  // allocate and waits for the stream. Nothing of the operands is changed but `out`, `prepared` and
  // `gate_up`.
  void tune(std::span<const GemmCall> alike, Stream& stream);

  // What tuning has found.
  virtual GemmConfigurations configurations() const { return {}; }
  // What it found in earlier runs, here or elsewhere; before the first GEMM. What does not hold
  // here, or is no configuration at all, counts for nothing.
  virtual void adopt(GemmConfigurations /*configurations*/) {}
  // How many of those may hold here. May wait until libraries have been loaded.
  virtual std::size_t known() { return 0; }

 protected:
  // A pure function of the shape, which is not empty, and of the device. m is at most kManyRows.
  virtual GemmPlan make_plan(const GemmShape& shape) = 0;
  // Of checked operands.
  virtual void enqueue(const GemmCall& call, Stream& stream) = 0;
  virtual void enqueue_sampling(const GemmCall& call, const SampleTokens& sample, Stream& stream);
  // Of a checked grouped GEMM; an Error if this backend has no kernel for it.
  virtual GroupedFusion fused_in(const GroupedGemm& grouped) = 0;
  // Of checked operands, with rows and outputs, and of what is fused alone.
  virtual void enqueue_grouped(const GroupedGemm& grouped, Stream& stream) = 0;
  // Of both as one, if the backend can; else false. Operands are checked, and there are rows.
  virtual bool enqueue_grouped_mlp(const GroupedGemm& gate_up, const GroupedGemm& down,
                                   Stream& stream);
  // Of checked operands, with rows and outputs, if the backend has kernels for it; else false.
  virtual bool enqueue_segmented(const SegmentedGemm& gemm, Stream& stream);
  virtual void measure(std::span<const GemmCall> alike, Stream& stream) = 0;

 private:
  static void check(const GemmCall& call);

  // Of GEMMs that are tuned together: M, outputs, inputs, prologue, epilogue, whether there is a
  // residual.
  using Kind = std::tuple<std::int64_t, std::int64_t, std::int64_t, Prologue, Epilogue, bool>;

  std::map<GemmShape, GemmPlan> plans_;
  bool recording_ = false;
  std::map<Kind, std::vector<GemmCall>> recorded_;
};

// Plans are the same for this many rows and for all above.
inline constexpr std::int64_t kManyRows = 129;

// Whether a GEMM's epilogue can sample so: from the logits as they are.
bool samples_in_epilogue(const SampleTokens& sample);

struct GemmOptions {
  // There will be quantized weights: memory for these is taken at once, and none later.
  bool quantized = false;
  // A row's bits depend on that row and the weight alone: not on M, and not on which kernel was the
  // fastest on this GPU. Each sum is one chain over K then, in steps of 16 inputs, which is what
  // wgmma and cuBLASLt's algorithms without split K have in common; no norm is deferred, and no
  // autotuned configuration splits K. What not all of these take is computed by `dot`. Quantized
  // weights are refused, and a residual must not be out itself: cuBLASLt would start its sums from
  // it. (The CPU's GEMMs are so by themselves.)
  bool invariant = false;
};
std::unique_ptr<Gemm> create_gemm(Backend& backend, const GemmOptions& options = {});

// Device memory that one takes from its start on. (On the CPU it takes some as it needs it.)
std::size_t gemm_bytes(DeviceKind device, bool quantized = false);

// What run(), run_grouped() and run_segmented() check first.
void check_gemm(const GemmCall& call);
void check_grouped_gemm(const GroupedGemm& grouped);
void check_segmented_gemm(const SegmentedGemm& gemm);

}  // namespace nvllm::kernels
