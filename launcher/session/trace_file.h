// Trace files: a timeline of all processes, for Perfetto (https://ui.perfetto.dev) and
// chrome://tracing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/trace.h"

namespace nvllm::launcher {

// Writes the events of several processes as JSON in Chrome's trace format: a process per trace, in
// order, a thread per track, and the step number with every event that has one. Times are relative
// to start_ns. Needs little memory besides the events. Throws an Error that names the file if it
// cannot be written, or contains anything but a trace.
void write_trace(const std::string& path, const std::vector<ProcessTrace>& traces,
                 std::int64_t start_ns);

}  // namespace nvllm::launcher
