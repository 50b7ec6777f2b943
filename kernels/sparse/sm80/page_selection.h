#pragma once

#include "kernels/sparse/page_selection.h"

namespace nvllm::kernels::cuda {

// kernels::bound_pages and select_pages of checked arguments on a stream of the CUDA backend.
void bound_pages(const BoundPages& args, Stream& stream);
void select_pages(const SelectPages& args, Stream& stream);

}  // namespace nvllm::kernels::cuda
