#pragma once

#include "kernels/sparse/sparse_attention.h"

namespace nvllm::kernels::cuda {

// kernels::sparse_attention of checked arguments on a stream of the CUDA backend.
void sparse_attention(const SparseAttention& args, Stream& stream);

}  // namespace nvllm::kernels::cuda
