// The plain definitions of operations, run at once by the caller: what tests compare every backend
// with. Their sums are in double.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention/attention.h"

namespace nvllm::kernels {

void attention_reference(const Attention& args);
// The definition for one head of one row, which attends to these tokens of a sequence.
void attend_reference(const Attention& args, std::int64_t sequence, std::int64_t row,
                      std::int64_t head, const std::vector<std::int32_t>& tokens);
void combine_attention_reference(const CombineAttention& args);

}  // namespace nvllm::kernels
