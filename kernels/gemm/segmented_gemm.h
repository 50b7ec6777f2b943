// Segmented GEMMs (Gemm::run_segmented()): each segment of the inputs is summed for itself, and
// these sums are added in a given order.
#pragma once

#include <cstdint>

#include "kernels/gemm/gemm.h"
#include "kernels/pointwise/tree_sum.h"

namespace nvllm::kernels {

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

// The checks of run_segmented().
void check_segmented_gemm(const SegmentedGemm& gemm);

}  // namespace nvllm::kernels
