#pragma once

#include "kernels/sparse/gather_pages.h"

namespace nvllm::kernels::cuda {

// kernels::gather_pages of checked arguments on a stream of the CUDA backend.
void gather_pages(const GatherPages& args, Stream& stream);

}  // namespace nvllm::kernels::cuda
