#pragma once

#include "kernels/sampling/top_k_top_p.h"

namespace nvllm::kernels::cuda {

// Those of kernels:: of checked arguments on a stream of the CUDA backend.
void find_maximum(const FilterLogits& args, Stream& stream);
void begin_filter(const FilterLogits& args, Stream& stream);
void count_round(const FilterLogits& args, FilterKind kind, int round, Stream& stream);
void choose_round(const FilterLogits& args, FilterKind kind, int round, Stream& stream);

// All of it in one launch, of whole rows; false: not on this GPU, or not for rows of this length.
bool filter_rows_sm90(const FilterLogits& args, Stream& stream);

}  // namespace nvllm::kernels::cuda
