#pragma once

#include "device/backend.h"

namespace nvllm::kernels::cuda {

// Reads a buffer as fast as it goes, past the L1: the limit of what streams weights.
void read_all(const Buffer& buffer, Stream& stream);

}  // namespace nvllm::kernels::cuda
