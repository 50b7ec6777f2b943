#pragma once

#include "kernels/sampling/sample_tokens.h"

namespace nvllm::kernels::cuda {

// kernels::draw_tokens and kernels::pick_tokens of checked arguments on a stream of the CUDA backend.
void draw_tokens(const DrawTokens& args, Stream& stream);
void pick_tokens(const PickTokens& args, Stream& stream);

}  // namespace nvllm::kernels::cuda
