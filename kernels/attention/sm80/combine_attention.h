#pragma once

#include "kernels/attention/combine_attention.h"

namespace nvllm::kernels::cuda {

// kernels::merge_attention of checked arguments on a stream of the CUDA backend.
void merge_attention(const MergeAttention& args, Stream& stream);

}  // namespace nvllm::kernels::cuda
