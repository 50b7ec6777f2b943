// Whether a device has room for what a runner takes beside weights and cache, before anything is taken.
#pragma once

#include <cstddef>
#include <functional>

#include "device/backend.h"
#include "runtime/runner_options.h"

namespace nvllm::runtime {

// An Error if bytes_of(options) is more than `available`. It names the option that helps, and a value of it with
// which half of what is available is left to the cache. More of any option never takes less.
void require_workspace(const RunnerOptions& options, DeviceKind device, std::size_t available,
                       const std::function<std::size_t(const RunnerOptions&)>& bytes_of);

}  // namespace nvllm::runtime
