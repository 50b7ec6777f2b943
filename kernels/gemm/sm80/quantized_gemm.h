// QuantizedGemm: GEMMs of many rows with quantized weights, and all that no other kernel takes.
#pragma once

#include "device/backend.h"
#include "kernels/gemm/cublaslt/cublaslt_gemm.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/sm80/quantized.h"

namespace nvllm::kernels::cuda {

class QuantizedGemm {
 public:
  // at_once: takes its memory now, else with the first plan.
  QuantizedGemm(Backend& backend, CublasltGemm& cublaslt, bool at_once);

  // fp8 where x may be quantized and cuBLASLt multiplies fp8 with scales of groups, else
  // dequantize.
  GemmKernel kernel_of(const GemmShape& shape);
  // Of a call of either, without its epilogue. Its prologue is done, unless makes_rows().
  void enqueue(const GemmCall& call, Stream& stream);

  // Whether a call's prologue is a kernel of its own that can leave rows in fp8: for a call whose
  // kernel reads such rows this makes them, and nobody else does the prologue.
  static bool makes_rows(const GemmCall& call);
  // What a call's kernel multiplies, in fp8, in memory that is there until the next GEMM; scales
  // have room for so many rows.
  Fp8Rows rows_of(const GemmCall& call, std::int64_t scale_stride, Stream& stream);

  // Takes its memory, if it has none.
  void reserve();
  // Room in that memory for weights as floats, of at most kQuantizedGemmBytes, until the next GEMM.
  TensorView floats(DType type, std::int64_t outputs, std::int64_t inputs);
  // How many rows of x there is room for in fp8.
  static std::int64_t max_fp8_rows(std::int64_t inputs);
  // x in fp8, in that memory, for a kernel that reads it so; scales have room for so many rows.
  Fp8Rows quantized_rows(const TensorView& x, std::int64_t scale_stride, Stream& stream);

 private:
  // Where rows in fp8 lie in that memory.
  Fp8Rows place_of_rows(std::int64_t rows, std::int64_t inputs, std::int64_t scale_stride) const;
  // Some outputs at a time, as many as have room in memory as floats.
  void enqueue_dequantized(const GemmCall& call, Stream& stream);
  // Some rows at a time. False: cuBLASLt has no algorithm, and nothing is enqueued.
  bool enqueue_fp8(const GemmCall& call, Stream& stream);

  Backend& backend_;
  CublasltGemm& cublaslt_;
  bool is_hopper_;
  Buffer memory_;
};

}  // namespace nvllm::kernels::cuda
