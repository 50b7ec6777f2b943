#pragma once

#include <optional>

#include "kernels/attention/attention.h"
#include "kernels/common/cpu/instruction_set.h"

namespace nvllm::kernels::cpu {

// kernels::attention of checked arguments on a stream of the CPU backend, with the instructions of `set`
// (avx2 or avx512) or, without it, the best that there are.
void attention(const Attention& args, Stream& stream, std::optional<InstructionSet> set = {});

}  // namespace nvllm::kernels::cpu
