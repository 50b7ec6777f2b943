#pragma once

#include "kernels/sampling/sample_tokens.h"

namespace nvllm::kernels::cuda {

// kernels::sample_tokens and kernels::reduce_samples of checked arguments on a stream of the CUDA backend.
void sample_tokens(const SampleTokens& args, Stream& stream);
void reduce_samples(const ReduceSamples& args, Stream& stream);

}  // namespace nvllm::kernels::cuda
