#pragma once

#include "kernels/sampling/log_probabilities.h"

namespace nvllm::kernels::cuda {

// Those of kernels:: of checked arguments on a stream of the CUDA backend.
void summarize_logits(const LogProbabilities& args, Stream& stream);
void log_probabilities(const LogProbabilities& args, Stream& stream);
void rank_tokens(const LogProbabilities& args, Stream& stream);

}  // namespace nvllm::kernels::cuda
