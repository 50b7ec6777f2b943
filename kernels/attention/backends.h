// The implementations of this folder's operations, by backend. NAME.cc checks the arguments and
// calls the one of the stream's device; tests may call one directly. All of them take checked
// arguments and enqueue on `stream`.
#pragma once

#include <optional>

#include "device/backend.h"
#include "kernels/common/cpu/instruction_set.h"

namespace nvllm::kernels {

struct Attention;
struct CombineAttention;

namespace cpu {

// With the instructions of `set` (avx2 or avx512) or, without it, the best that this processor has.
void attention(const Attention& args, Stream& stream, std::optional<InstructionSet> set = {});
void combine_attention(const CombineAttention& args, Stream& stream);

}  // namespace cpu

namespace cuda {

void attention(const Attention& args, Stream& stream);
void combine_attention(const CombineAttention& args, Stream& stream);

}  // namespace cuda

}  // namespace nvllm::kernels
