// QuantizedGemm: GEMMs of many rows with quantized weights, and the fallback for all other shapes.
#pragma once

#include <functional>

#include "device/backend.h"
#include "kernels/gemm/cublaslt/cublaslt_gemm.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/sm80/quantized.h"

namespace nvllm::kernels::cuda {

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
