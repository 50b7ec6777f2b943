// Rows of x as dot products with quantized weights read them: in the input order of a weight block.
#pragma once

#include "kernels/gemm/cpu/gemm_kernels.h"

namespace nvllm::kernels::cpu {

inline constexpr int kActivationGroup = 32;  // inputs that share a scale of a quantized x

// A quantized block of a row of x: scale[group] * integer. Blocks are contiguous, so the size is a
// multiple of a cache line. kParts: 64 inputs each.
//
// Word k of a thread of the weight (quantized_weight.h) belongs to a step of 16 (int8) or 32 (int4)
// inputs, and so does each dword of integers; scales[k] is their scale.
template <int kParts>
struct alignas(64) QuantizedActivations {
  // In the byte order of int8; for int4 first those of the low nibbles, then those of the high
  // nibbles.
  std::int8_t integers[kParts * 64];
  // For each scale and offset of the weight's block the sum of scale * integer over its inputs:
  // -zero times the sum, and the sum itself; zero-padded.
  float sums[8];
  float scales[4];
  float padding[4];
};

template <int kParts>
std::int64_t quantized_activation_floats(std::int64_t inputs) {
  const std::int64_t blocks = (inputs + kParts * 64 - 1) / (kParts * 64);
  return blocks * static_cast<std::int64_t>(sizeof(QuantizedActivations<kParts>) / sizeof(float));
}

// Implements DotKernels::prepare: int8 blocks have one part, int4 blocks two. kZero: what integer
// kernels leave to be subtracted from each weight. Scales and sums are multiplied by kScaleUnit.
template <int kParts, int kZero>
void quantize_activations(const GemmTask& gemm, std::int64_t first_row, int rows,
                          std::int64_t begin, std::int64_t end, float* prepared);

// x in float32 in the order in which kernels dequantize a block, as many floats as a block has
// inputs. For integers, x is multiplied by kScaleUnit.
//
//   fp8   floats 32 h + 16 b to 32 h + 16 b + 15: bytes b, b + 2, b + 4, b + 6 of the lower (h = 0)
//         or upper half of each thread's 16 bytes
//   int8  floats 16 e to 16 e + 15: bytes e of its dwords
//   int4, mxfp4  floats 16 n to 16 n + 15: bits 4 n of its dwords
template <WeightFormat kFormat>
std::int64_t float_activation_floats(std::int64_t inputs) {
  constexpr std::int64_t kInputs = block_inputs_of(kFormat);
  return (inputs + kInputs - 1) / kInputs * kInputs;
}
template <WeightFormat kFormat>
void order_activations(const GemmTask& gemm, std::int64_t first_row, int rows, std::int64_t begin,
                       std::int64_t end, float* prepared);

}  // namespace nvllm::kernels::cpu
