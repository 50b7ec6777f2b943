// The plain definitions of operations, run at once by the caller: what tests compare every backend
// with. Their sums are in double.
#pragma once

#include "kernels/pointwise/elementwise.h"
#include "kernels/pointwise/norm_rope_store.h"
#include "kernels/pointwise/random_fill.h"
#include "kernels/pointwise/rmsnorm.h"

namespace nvllm::kernels {

void gated_activation_reference(const GatedActivation& args);
void norm_rope_store_reference(const NormRopeStore& args);
void random_fill_reference(const RandomFill& args);
void rms_norm_reference(const RmsNorm& args);
void scaled_sum_reference(const ScaledSum& args);
void sigmoid_gate_reference(const SigmoidGate& args);
void soft_cap_reference(const SoftCap& args);

}  // namespace nvllm::kernels
