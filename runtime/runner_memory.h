// What a runner takes of its device beside weights and cache, by arithmetic.
#pragma once

#include <cstddef>

#include "device/backend.h"
#include "model/decoder.h"
#include "runtime/runner_options.h"

namespace nvllm::runtime {

// What its constructor takes.
std::size_t workspace_bytes(const model::Decoder& decoder, const RunnerOptions& options,
                            DeviceKind device);
// What steps may take later: captured graphs; on the CPU, products of many rows.
std::size_t graph_bytes(const model::Decoder& decoder, const RunnerOptions& options,
                        DeviceKind device);

}  // namespace nvllm::runtime
