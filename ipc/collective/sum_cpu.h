// Sums on the CPU, as every implementation defines them.
#pragma once

#include <cstddef>
#include <span>

#include "device/dtype.h"

namespace nvllm::ipc {

// to[i] = the sum over the sources of source[i]: in float32, in the order of the sources, rounded
// once. A sum that is zero is +0, never -0: the GPU's protocol cannot carry -0 (peer_protocol.cuh),
// and all implementations shall agree to the bit. `to` may be one of the sources. The bits of an
// element do not depend on where in the tensor it lies.
void sum_cpu(DType type, void* to, std::span<const void* const> sources, std::size_t elements);

}  // namespace nvllm::ipc
