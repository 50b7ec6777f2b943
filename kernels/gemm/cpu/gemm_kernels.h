// What GEMMs on the CPU are made of: for each instruction set and element type, a table of
// functions. gemm.cc divides the work; gemm_dot.h and gemm_blocks.h hold the loops, which are
// compiled once per instruction set (gemm_avx2.cc and so on).
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/dtype.h"
#include "kernels/gemm/quantized_weight.h"

namespace nvllm::kernels::cpu {

// A gemm of checked arguments: out = [residual +] x · weightᵀ [+ bias].
struct GemmTask {
  void* out;
  const void* x;
  const void* weight;
  const void* bias;      // nullptr: none
  const void* residual;  // nullptr: none; may be out
  std::int64_t rows, outputs, inputs;
  std::int64_t out_stride, x_stride, residual_stride;  // in elements
  DType dtype;  // of x, bias and residual, and of a weight that is not quantized
  bool out_f32;
  WeightFormat format;
  // Of a quantized weight.
  bool weight_only;
  std::int32_t group;
  const void* scales;
};

// Every output's sum is taken in an order that depends on `inputs` and on which of the ways it
// goes, but not on how the work is divided.
//
// 1. For few rows: the weights are read once, in place, in the order in which they lie. Rows of x
// come prepared (an opaque format), `row_floats` floats for each.
struct DotKernels {
  static constexpr int kMaxDotRows = 16;
  static constexpr int kDotOutputs = 16;      // ranges of outputs begin at multiples of it
  static constexpr int kPrepareInputs = 128;  // ranges of inputs, likewise
  std::int64_t (*row_floats)(std::int64_t inputs);
  // For how many rows there must be room where so many are prepared: as many, or whole tiles.
  std::int64_t (*prepared_rows)(std::int64_t rows);
  // Of `rows` <= kMaxDotRows rows from first_row on, the inputs [begin, end).
  void (*prepare)(const GemmTask& gemm, std::int64_t first_row, int rows, std::int64_t begin,
                  std::int64_t end, float* prepared);
  // Of the same rows, the outputs [begin, end).
  void (*dot)(const GemmTask& gemm, std::int64_t first_row, int rows, const float* prepared,
              std::int64_t begin, std::int64_t end);
};

// 2. For many rows: blocks of outputs by stretches of rows. x comes packed in panels of panel_rows
// rows (an opaque format). Sums lie in registers while a stretch of the inputs goes by, then in a
// buffer of the block.
struct BlockKernels {
  int panel_rows;
  int block_rows, block_outputs;  // of a block, at most
  int unit_rows, unit_outputs;    // blocks begin at multiples of them, of panel_rows also
  // The cost to fetch a row of x, in dot products with a row of weights, and the other way around.
  int row_cost, output_cost;
  std::int64_t (*panel_floats)(std::int64_t inputs);
  void (*pack_panel)(const GemmTask& gemm, std::int64_t panel, float* packed);
  // Outputs [begin, end) of `rows` rows from first_row on. `packed` is the first panel of all.
  void (*block)(const GemmTask& gemm, const float* packed, std::int64_t begin, std::int64_t end,
                std::int64_t first_row, std::int64_t rows);
};

struct GemmKernels : DotKernels, BlockKernels {};

// Tables of one instruction set, for float32, bfloat16 or float16. To be called only where the
// processor has it.
const GemmKernels& gemm_kernels_avx2(DType type);
const GemmKernels& gemm_kernels_avx512(DType type);
const GemmKernels& gemm_kernels_avx512_bf16();
const GemmKernels& gemm_kernels_amx_bf16();

// Of quantized weights: dot products, which are chosen by format and by whether x may be quantized;
// and blocks that dequantize weights for x of a type.
const DotKernels& quantized_dots_avx2(const GemmTask& gemm);
const DotKernels& quantized_dots_avx512(const GemmTask& gemm);
const BlockKernels& quantized_blocks_avx2(DType type);
const BlockKernels& quantized_blocks_avx512(DType type);
const BlockKernels& quantized_blocks_avx512_bf16();
const BlockKernels& quantized_blocks_amx_bf16();
// Where x may be quantized, of int8 and int4; blocks take groups of 32 inputs or more.
const DotKernels& quantized_dots_avx512_vnni(WeightFormat format);
const BlockKernels& quantized_blocks_avx512_vnni(WeightFormat format);
// Of fp8.
const DotKernels& quantized_dots_avx512_vbmi();

}  // namespace nvllm::kernels::cpu
