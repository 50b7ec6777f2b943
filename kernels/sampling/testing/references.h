// The plain definitions of operations, run at once by the caller: what tests compare every backend
// with.
#pragma once

#include "kernels/sampling/sampling.h"

namespace nvllm::kernels {

void apply_penalties_reference(const ApplyPenalties& args);
// For whole rows, in double: sets the results alone.
void log_probabilities_reference(const LogProbabilities& args);
void sample_tokens_reference(const SampleTokens& args);
// For whole rows, by sorting them: sets `thresholds` alone.
void top_k_top_p_reference(const TopKTopP& args);

}  // namespace nvllm::kernels
