// The building blocks of CPU GEMMs: a table of functions for each instruction set and element type.
// gemm.cc divides the work; gemm_dot.h and gemm_blocks.h hold the loops, which are compiled once
// per instruction set (gemm_avx2.cc and so on).
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/dtype.h"
#include "kernels/gemm/quantized_weight.h"

namespace nvllm::kernels::cpu {

// A GEMM with checked arguments: out = [residual +] x · weightᵀ [+ bias].
struct GemmTask {
  void* out;
  const void* x;
  const void* weight;
  const void* bias;      // nullptr: none
  const void* residual;  // nullptr: none; may alias out
  std::int64_t rows, outputs, inputs;
  std::int64_t out_stride, x_stride, residual_stride;  // in elements
  DType dtype;  // of x, bias and residual, and of a weight that is not quantized
  bool out_f32;
  WeightFormat format;
  // Quantized weights only.
  bool weight_only;
  std::int32_t group;
  const void* scales;
};

// The order of every output's sum depends on `inputs` and on which of the two paths is taken, but
// not on how the work is divided.
//
// 1. Few rows: the weights are read once, in place and in memory order. Rows of x are converted
// first (to an opaque format), `row_floats` floats each.
struct DotKernels {
  static constexpr int kMaxDotRows = 16;
  static constexpr int kDotOutputs = 16;      // output ranges begin at multiples of it
  static constexpr int kPrepareInputs = 128;  // input ranges begin at multiples of it
  std::int64_t (*row_floats)(std::int64_t inputs);
  // The rows of memory that `rows` converted rows take: as many, or whole tiles.
  std::int64_t (*prepared_rows)(std::int64_t rows);
  // Converts inputs [begin, end) of `rows` <= kMaxDotRows rows from first_row on.
  void (*prepare)(const GemmTask& gemm, std::int64_t first_row, int rows, std::int64_t begin,
                  std::int64_t end, float* prepared);
  // Computes outputs [begin, end) of the same rows.
  void (*dot)(const GemmTask& gemm, std::int64_t first_row, int rows, const float* prepared,
              std::int64_t begin, std::int64_t end);
};

// 2. Many rows: blocks of outputs by blocks of rows. x is packed in panels of panel_rows rows (an
// opaque format). Sums stay in registers for a range of the inputs, then in a buffer of the block.
struct BlockKernels {
  int panel_rows;
  int block_rows, block_outputs;  // max. block size
  int unit_rows, unit_outputs;    // blocks begin at multiples of these, and of panel_rows
  // The cost of fetching a row of x, in dot products with a weight row, and vice versa.
  int row_cost, output_cost;
  std::int64_t (*panel_floats)(std::int64_t inputs);
  void (*pack_panel)(const GemmTask& gemm, std::int64_t panel, float* packed);
  // Computes outputs [begin, end) of `rows` rows from first_row on. `packed` is the first panel of
  // all.
  void (*block)(const GemmTask& gemm, const float* packed, std::int64_t begin, std::int64_t end,
                std::int64_t first_row, std::int64_t rows);
};

struct GemmKernels : DotKernels, BlockKernels {};

// The tables of one instruction set, for float32, bfloat16 or float16. Requires a processor that
// supports it.
const GemmKernels& gemm_kernels_avx2(DType type);
const GemmKernels& gemm_kernels_avx512(DType type);
const GemmKernels& gemm_kernels_avx512_bf16();
const GemmKernels& gemm_kernels_amx_bf16();

// For quantized weights: dot products, selected by format and by whether x may be quantized; and
// blocks that dequantize weights to the type of x.
const DotKernels& quantized_dots_avx2(const GemmTask& gemm);
const DotKernels& quantized_dots_avx512(const GemmTask& gemm);
const BlockKernels& quantized_blocks_avx2(DType type);
const BlockKernels& quantized_blocks_avx512(DType type);
const BlockKernels& quantized_blocks_avx512_bf16();
const BlockKernels& quantized_blocks_amx_bf16();
// For int8 and int4, where x may be quantized; blocks support groups of at least 32 inputs.
const DotKernels& quantized_dots_avx512_vnni(WeightFormat format);
const BlockKernels& quantized_blocks_avx512_vnni(WeightFormat format);
// For fp8.
const DotKernels& quantized_dots_avx512_vbmi();

}  // namespace nvllm::kernels::cpu
