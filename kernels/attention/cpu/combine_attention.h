#pragma once

#include "kernels/attention/combine_attention.h"

namespace nvllm::kernels::cpu {

// kernels::merge_attention of checked arguments on a stream of the CPU backend.
void merge_attention(const MergeAttention& args, Stream& stream);

}  // namespace nvllm::kernels::cpu
