#pragma once

#include "kernels/sampling/top_k_top_p.h"

namespace nvllm::kernels::cpu {

// Those of kernels:: of checked arguments on a stream of the CPU backend.
void find_maximum(const TopKTopP& args, Stream& stream);
void begin_truncation(const TopKTopP& args, Stream& stream);
void count_truncation_round(const TopKTopP& args, TruncationKind kind, int round, Stream& stream);
void choose_truncation_round(const TopKTopP& args, TruncationKind kind, int round, Stream& stream);

}  // namespace nvllm::kernels::cpu
