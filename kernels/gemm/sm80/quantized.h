// Helpers of GEMMs with quantized weights: dequantized weights, and activations in fp8.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "kernels/gemm/gemm.h"

namespace nvllm::kernels::cuda {

// Writes the weights of outputs [first, first + out.shape[0]) to out, [some outputs, inputs],
// dense, rounded once to its type.
void dequantize(const GemmWeight& weight, std::int64_t first, const TensorView& out,
                Stream& stream);

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

// The scales of an fp8 weight, [outputs, groups], as [groups, outputs].
void transpose_scales(const TensorView& scales, float* out, Stream& stream);
// The scales of every 128th output, as [outputs / 128, groups padded to a multiple of 4].
void gather_block_scales(const TensorView& scales, float* out, Stream& stream);

}  // namespace nvllm::kernels::cuda
