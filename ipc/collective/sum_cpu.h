// What the CPU does with the ranks' data: sums, as every implementation defines them, and copies.
#pragma once

#include <cstddef>
#include <span>

#include "device/dtype.h"

namespace nvllm::ipc {

// Copies into memory that another process is about to read, past this core's caches. Lines that the
// reader still has from last time would otherwise have to be taken from it one by one, which costs
// more than everything else (AMD EPYC: 2.7 GB/s instead of 30). Complete, for others too, when it
// returns.
void copy_for_others(void* to, const void* from, std::size_t bytes);

// to[i] = also_to[i] = the sum over the sources of source[i]: in float32, in the order of the
// sources, rounded once. A sum that is zero is +0, never -0: the GPU's protocol cannot carry -0
// (peer_protocol.cuh), and all implementations shall agree to the bit. also_to may be null, else it
// is written as copy_for_others does, and a multiple of 64 bytes; `to` may be one of the sources.
// The bits of an element do not depend on where in the tensor it lies.
void sum_cpu(DType type, void* to, void* also_to, std::span<const void* const> sources,
             std::size_t elements);

}  // namespace nvllm::ipc
