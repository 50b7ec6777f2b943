#pragma once

#include "kernels/sparse/page_attention.h"

namespace nvllm::kernels::cpu {

// kernels::page_attention of checked arguments on a stream of the CPU backend.
void page_attention(const PageAttention& args, Stream& stream);

}  // namespace nvllm::kernels::cpu
