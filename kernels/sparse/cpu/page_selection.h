#pragma once

#include "kernels/sparse/page_selection.h"

namespace nvllm::kernels::cpu {

// kernels::bound_pages and select_pages of checked arguments on a stream of the CPU backend.
void bound_pages(const BoundPages& args, Stream& stream);
void select_pages(const SelectPages& args, Stream& stream);

}  // namespace nvllm::kernels::cpu
