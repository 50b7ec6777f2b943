#pragma once

#include "kernels/sampling/sampling_rules.h"

namespace nvllm::kernels::cuda {

// kernels::write_words on a stream of the CUDA backend.
void write_words(std::uint32_t* to, const std::uint32_t* words, std::int64_t count, Stream& stream);

}  // namespace nvllm::kernels::cuda
