// Trace files: a timeline of all processes, for Perfetto (https://ui.perfetto.dev) and
// chrome://tracing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/trace.h"

namespace nvllm::launcher {

// Writes the events of several processes as JSON in Chrome's trace format: a process per trace, in
// this order, a thread per track, and the step number with every event that has one. Times are
// relative to start_ns. It needs little memory beside the events. Throws an Error that names the
// file if it cannot be written, or has something in it that is no trace.
void write_trace(const std::string& path, const std::vector<ProcessTrace>& traces,
                 std::int64_t start_ns);

}  // namespace nvllm::launcher
