// Segmented GEMMs of up to 16 rows, in one kernel.
#pragma once

#include "kernels/gemm/segmented_gemm.h"

namespace nvllm::kernels::cuda {

// Enqueues a GEMM with the bits of InvariantGemv and tree_sum(). Returns false, with nothing
// enqueued, if the shape is not supported. Takes a checked GEMM with rows and outputs.
bool segmented_gemv(const SegmentedGemm& gemm, Stream& stream);

}  // namespace nvllm::kernels::cuda
