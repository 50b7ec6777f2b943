// Segmented GEMMs of up to 16 rows, in one kernel.
#pragma once

#include "kernels/gemm/gemm.h"

namespace nvllm::kernels::cuda {

// Enqueues it with the bits of InvariantGemv and tree_sum(). False, and nothing is enqueued: not
// for this shape. Takes a checked GEMM with rows and outputs.
bool segmented_gemv(const SegmentedGemm& gemm, Stream& stream);

}  // namespace nvllm::kernels::cuda
