// Short kernels that let the next one come before they may begin themselves. With launch.cuh's way two kernels are on
// the GPU at once; here one after the other joins them, each waiting for the one before, as long as all are short and
// there is room. So a product asks for its weights while a product before it, and what lies between, is still at work.
//
// Products whose blocks ask for all of their weights at once do this, norms and activations before such products and
// before those of skinny_sm90.cuh, and norm_rope_store. Norms that did it before longer products made steps up to 7%
// longer. None of these kernels reads before it has waited what any of them has written, but weights only, and
// norm_rope_store the rows' places; nor does attention (only_rows_are_new of both).
#pragma once

#include "kernels/common/sm80/launch.cuh"

namespace nvllm::kernels {

// begin_after_previous_kernel() of a kernel that lets the next one come early, or does not. Between its two halves
// (launch.cuh) such a kernel may read what the kernels that do so, as many as follow one another, and the one before
// them do not write.
__device__ __forceinline__ void begin_after_previous_kernel(bool next_comes_early) {
  if (next_comes_early) let_next_kernel_come();
  wait_for_previous_kernel();
  if (!next_comes_early) let_next_kernel_come();
}

}  // namespace nvllm::kernels
