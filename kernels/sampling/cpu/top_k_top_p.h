#pragma once

#include "kernels/sampling/top_k_top_p.h"

namespace nvllm::kernels::cpu {

// Those of kernels:: of checked arguments on a stream of the CPU backend.
void find_maximum(const FilterLogits& args, Stream& stream);
void begin_filter(const FilterLogits& args, Stream& stream);
void count_round(const FilterLogits& args, FilterKind kind, int round, Stream& stream);
void choose_round(const FilterLogits& args, FilterKind kind, int round, Stream& stream);

}  // namespace nvllm::kernels::cpu
