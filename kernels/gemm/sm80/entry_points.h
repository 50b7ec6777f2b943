// Kernels of all GPUs that are no kernel class of backends.h: they dequantize weights and prepare
// rows of x for a GEMM's kernel. The plan (cuda/) and kernels of Hopper call them, too.
#pragma once

#include <cstdint>
#include <functional>

#include "device/backend.h"
#include "kernels/gemm/gemm_steps.h"
#include "kernels/pointwise/backends.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/pointwise/rmsnorm.h"

namespace nvllm::kernels::cuda {

class CublasltGemm;

// --- weights: quantized.cu -----------------------------------------------------------------------

// Writes the weights of outputs [first, first + out.shape[0]) to out, [some outputs, inputs],
// dense, rounded once to its type.
void dequantize(const GemmWeight& weight, std::int64_t first, const TensorView& out,
                Stream& stream);

// The scales of an fp8 weight, [outputs, groups], as [groups, outputs].
void transpose_scales(const TensorView& scales, float* out, Stream& stream);
// The scales of every 128th output, as [outputs / 128, groups padded to a multiple of 4].
void gather_block_scales(const TensorView& scales, float* out, Stream& stream);

// --- prologues -----------------------------------------------------------------------------------

// Runs a call's prologue if it is a separate kernel.
inline void enqueue_prologue(const GemmCall& call, Stream& stream) {
  if (!call.plan.prologue_kernel || call.weight.inputs() == 0) return;
  const bool early = call.plan.prologue_triggers_early;
  if (call.plan.prologue == Prologue::rms_norm) return rms_norm(norm_of(call), stream, early);
  gated_activation(prologue_activation(call), stream, early);
}

// --- rows of x in fp8: fp8_rows.cu, quantized.cu -------------------------------------------------

// Whether x of a GEMM may be quantized to fp8, like its weight.
inline bool may_quantize_rows(const GemmShape& shape) {
  return shape.format == WeightFormat::fp8 && !shape.weight_only && shape.inputs % kFp8Group == 0;
}

// Rows of activations in fp8, in the input order of a quantized weight's blocks, with one scale per
// row and 128 inputs.
struct Fp8Rows {
  std::byte* values = nullptr;    // [rows, inputs]; inputs are a multiple of 128
  float* scales = nullptr;        // [inputs / 128, scale_stride]
  std::int64_t scale_stride = 0;  // at least the number of rows
};
// trigger_early: see common/sm80/launch.cuh.
void quantize_rows(const TensorView& x, const Fp8Rows& out, Stream& stream, bool trigger_early);

// Whether quantize_normed_rows() or quantize_activated_rows() supports a prologue: rows consist of
// whole vectors at multiples of 16 bytes.
bool makes_fp8_rows(const RmsNorm& norm);
bool makes_fp8_rows(const GatedActivation& activation);

// Fused kernels: the bits are those of the separate operation, whose `out` is not written, followed
// by quantize_rows().
void quantize_normed_rows(const RmsNorm& norm, const Fp8Rows& out, Stream& stream,
                          bool trigger_early);
void quantize_activated_rows(const GatedActivation& activation, const Fp8Rows& out, Stream& stream,
                             bool trigger_early);

// --- many rows: quantized_gemm.cu ----------------------------------------------------------------

// GEMMs of many rows with quantized weights, and the fallback for all other shapes.
class QuantizedGemm {
 public:
  // at_once: allocates memory now, otherwise with the first plan.
  QuantizedGemm(Backend& backend, CublasltGemm& cublaslt, bool at_once);

  // fp8 if x may be quantized and cuBLASLt supports fp8 with scales per group, otherwise
  // dequantize.
  GemmKernel kernel_of(const GemmShape& shape);
  // Runs a call of either kernel, without its epilogue. Its prologue has run, unless makes_rows().
  void enqueue(const GemmCall& call, Stream& stream);
  // Dequantizes as many outputs at a time as fit into memory, and calls `run` with the GEMM of
  // these floats, without prologue, epilogue and plan.
  void for_dequantized_parts(const GemmCall& call, Stream& stream,
                             const std::function<void(const GemmCall& part)>& run);

  // Whether a call's prologue is a separate kernel that can write fp8 rows: for a call whose kernel
  // reads such rows, rows_of() then runs the prologue, and nobody else does.
  static bool makes_rows(const GemmCall& call);
  // The input of a call's kernel in fp8, in memory that is valid until the next GEMM; scale_stride
  // rows of scales are allocated.
  Fp8Rows rows_of(const GemmCall& call, std::int64_t scale_stride, Stream& stream);

  // Allocates its memory, if it has none.
  void reserve();
  // Memory for dequantized weights, of at most kQuantizedGemmBytes, valid until the next GEMM.
  TensorView floats(DType type, std::int64_t outputs, std::int64_t inputs);
  // The number of fp8 rows of x that fit into memory.
  static std::int64_t max_fp8_rows(std::int64_t inputs);
  // x in fp8, in that memory, for a kernel that reads it; scale_stride rows of scales are
  // allocated.
  Fp8Rows quantized_rows(const TensorView& x, std::int64_t scale_stride, Stream& stream);

 private:
  // The location of fp8 rows in that memory.
  Fp8Rows place_of_rows(std::int64_t rows, std::int64_t inputs, std::int64_t scale_stride) const;
  void enqueue_dequantized(const GemmCall& call, Stream& stream);
  // Processes some rows at a time. Returns false, with nothing enqueued, if cuBLASLt has no
  // algorithm.
  bool enqueue_fp8(const GemmCall& call, Stream& stream);

  Backend& backend_;
  CublasltGemm& cublaslt_;
  bool runs_sm90a_;
  Buffer memory_;
};

}  // namespace nvllm::kernels::cuda
