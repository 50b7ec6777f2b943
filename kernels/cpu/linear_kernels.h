// What products on the CPU are made of: for each instruction set and element type, a table of functions.
// linear.cc divides the work; linear_dot.h and linear_blocks.h hold the loops, which are compiled once per
// instruction set (linear_avx2.cc and so on).
#pragma once

#include <cstdint>

#include "device/dtype.h"

namespace nvllm::kernels::cpu {

// A product of checked arguments: out = [residual +] x · weightᵀ [+ bias].
struct Product {
  void* out;
  const void* x;
  const void* weight;
  const void* bias;      // nullptr: none
  const void* residual;  // nullptr: none; may be out
  std::int64_t rows, outputs, inputs;
  std::int64_t out_stride, x_stride, residual_stride;  // in elements
  DType dtype;
  bool out_f32;
};

// Every output's sum is taken in an order that depends on `inputs` and on which of the two ways it goes,
// but not on how the work is divided.
struct LinearKernels {
  // 1. For few rows: dot products of a row of weights with rows of x. The weights are read once, in place,
  // in the order in which they lie. Rows of x come prepared, as `row_floats` floats each (an opaque format).
  static constexpr int kMaxDotRows = 16;
  static constexpr int kDotOutputs = 16;  // ranges of outputs begin at multiples of it
  std::int64_t (*row_floats)(std::int64_t inputs);
  void (*prepare_row)(const void* x, std::int64_t inputs, float* prepared);
  // Of `rows` <= kMaxDotRows rows from first_row on, whose prepared rows are given, the outputs
  // [begin, end).
  void (*dot)(const Product& product, std::int64_t first_row, int rows, const float* prepared,
              std::int64_t begin, std::int64_t end);

  // 2. For many rows: blocks of outputs by panels of rows. x comes packed, panel by panel; weights are
  // packed block by block on the way. Sums lie in registers while a stretch of the inputs goes by, then
  // in a buffer of the block.
  int panel_rows, block_outputs, block_panels;  // the most panels at once
  std::int64_t (*panel_floats)(std::int64_t inputs);
  void (*pack_panel)(const Product& product, std::int64_t panel, float* packed);
  // Outputs [begin, end), at most block_outputs of them, from a multiple of 32 on, for panels [first_panel, last_panel); `packed` is
  // the first panel of all.
  void (*block)(const Product& product, const float* packed, std::int64_t begin, std::int64_t end,
                std::int64_t first_panel, std::int64_t last_panel);
};

// Tables of one instruction set, for float32, bfloat16 or float16. To be called only where the processor
// has it.
const LinearKernels& linear_kernels_avx2(DType type);
const LinearKernels& linear_kernels_avx512(DType type);
const LinearKernels& linear_kernels_avx512_bf16();
const LinearKernels& linear_kernels_amx_bf16();

}  // namespace nvllm::kernels::cpu
