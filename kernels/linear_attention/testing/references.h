// The plain definitions of the operations, run at once by the caller: what tests compare with.
// Their sums are in double.
#pragma once

#include "kernels/linear_attention/causal_conv.h"
#include "kernels/linear_attention/gated_delta_rule.h"

namespace nvllm::kernels {

void causal_conv_reference(const CausalConv& args);
void gated_delta_rule_reference(const GatedDeltaRule& args);

}  // namespace nvllm::kernels
