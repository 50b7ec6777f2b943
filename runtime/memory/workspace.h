// Computes the device memory that a runner takes beside weights and cache, and checks that it fits.
#pragma once

#include <cstddef>
#include <functional>

#include "device/backend.h"
#include "model/decoder.h"
#include "runtime/runner/runner_options.h"

namespace nvllm::runtime {

// The exact number of bytes that ModelRunner's constructor allocates.
std::size_t workspace_bytes(const model::Decoder& decoder, const RunnerOptions& options,
                            DeviceKind device);
// Memory that steps may allocate later: captured graphs; on the CPU, packed inputs of GEMMs.
std::size_t graph_bytes(const model::Decoder& decoder, const RunnerOptions& options,
                        DeviceKind device);

// An Error if the states of `sequences` sequences take more than `available`; it says how many fit.
void require_states(const model::Decoder& decoder, std::int64_t sequences, std::size_t available);

// An Error if bytes_of(options) exceeds `available`. It names the option to change, and a value
// with which half of the available memory is left for the cache. bytes_of must not decrease when an
// option grows.
void require_workspace(const RunnerOptions& options, DeviceKind device, std::size_t available,
                       const std::function<std::size_t(const RunnerOptions&)>& bytes_of);

}  // namespace nvllm::runtime
