#pragma once

#include "kernels/sparse/page_attention.h"

namespace nvllm::kernels::cuda {

// kernels::page_attention of checked arguments on a stream of the CUDA backend.
void page_attention(const PageAttention& args, Stream& stream);

}  // namespace nvllm::kernels::cuda
