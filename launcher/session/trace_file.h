// Trace files: what all processes did when, as Perfetto (https://ui.perfetto.dev) and chrome://tracing read it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/trace.h"

namespace nvllm::launcher {

// Writes the events of several processes as JSON in Chrome's trace format: a process per trace, in this
// order, with a thread per track, and the step's number with every event that has one. Times are relative
// to start_ns. Takes little memory beside the events; an Error names the file if it cannot be written.
void write_trace(const std::string& path, const std::vector<ProcessTrace>& traces,
                 std::int64_t start_ns);

}  // namespace nvllm::launcher
