// The device memory that a runner takes beside weights and cache, by arithmetic, and whether there
// is room for it.
#pragma once

#include <cstddef>
#include <functional>

#include "device/backend.h"
#include "model/decoder.h"
#include "runtime/runner/runner_options.h"

namespace nvllm::runtime {

// What ModelRunner's constructor takes, to the byte.
std::size_t workspace_bytes(const model::Decoder& decoder, const RunnerOptions& options,
                            DeviceKind device);
// What steps may take later: captured graphs; on the CPU, packed inputs of GEMMs.
std::size_t graph_bytes(const model::Decoder& decoder, const RunnerOptions& options,
                        DeviceKind device);

// An Error if the states of so many sequences take more than `available`; it says how many fit.
void require_states(const model::Decoder& decoder, std::int64_t sequences, std::size_t available);

// An Error if bytes_of(options) is more than `available`. It names the option that helps, and a
// value of it with which half of what is available is left to the cache. More of any option never
// takes less.
void require_workspace(const RunnerOptions& options, DeviceKind device, std::size_t available,
                       const std::function<std::size_t(const RunnerOptions&)>& bytes_of);

}  // namespace nvllm::runtime
