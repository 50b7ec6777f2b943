#pragma once

#include "kernels/sparse/sparse_attention.h"

namespace nvllm::kernels::cpu {

// kernels::sparse_attention of checked arguments on a stream of the CPU backend.
void sparse_attention(const SparseAttention& args, Stream& stream);

}  // namespace nvllm::kernels::cpu
