// The plain definitions of the operations, run at once by the caller: what tests compare with.
// Their sums are in double.
#pragma once

#include "kernels/linear_attention/linear_attention.h"

namespace nvllm::kernels {

void causal_conv_reference(const CausalConv& args);
void gated_delta_rule_reference(const GatedDeltaRule& args);

}  // namespace nvllm::kernels
