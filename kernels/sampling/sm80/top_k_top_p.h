#pragma once

#include "kernels/sampling/top_k_top_p.h"

namespace nvllm::kernels::cuda {

// Those of kernels:: of checked arguments on a stream of the CUDA backend.
void find_maximum(const TopKTopP& args, Stream& stream);
void begin_truncation(const TopKTopP& args, Stream& stream);
void count_truncation_round(const TopKTopP& args, TruncationKind kind, int round, Stream& stream);
void choose_truncation_round(const TopKTopP& args, TruncationKind kind, int round, Stream& stream);

// All of it in one launch, of whole rows; false: not on this GPU, or not for rows of this length.
bool top_k_top_p_sm90(const TopKTopP& args, Stream& stream);

}  // namespace nvllm::kernels::cuda
