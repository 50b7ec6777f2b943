// The plain definitions of the operations, run at once by the caller: what tests compare every
// backend with. Their sums are in double.
#pragma once

#include "kernels/moe/moe.h"

namespace nvllm::kernels {

void combine_experts_reference(const CombineExperts& args);
void route_reference(const Route& args);

}  // namespace nvllm::kernels
