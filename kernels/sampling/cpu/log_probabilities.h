#pragma once

#include "kernels/sampling/log_probabilities.h"

namespace nvllm::kernels::cpu {

// Those of kernels:: of checked arguments on a stream of the CPU backend.
void summarize_part(const ScoreTokens& args, Stream& stream);
void score_tokens(const ScoreTokens& args, Stream& stream);
void rank_tokens(const ScoreTokens& args, Stream& stream);

}  // namespace nvllm::kernels::cpu
