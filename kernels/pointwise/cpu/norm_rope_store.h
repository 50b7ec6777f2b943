#pragma once

#include "kernels/pointwise/norm_rope_store.h"

namespace nvllm::kernels::cpu {

// kernels::norm_rope_store of checked arguments on a stream of the CPU backend.
void norm_rope_store(const NormRopeStore& args, Stream& stream);

}  // namespace nvllm::kernels::cpu
