// bench startup: measures the time from the start of the program to the first token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/bench/measurements.h"
#include "launcher/bench/report.h"
#include "launcher/cli/options.h"
#include "runtime/engine/engine_messages.h"

namespace nvllm::launcher {

// The stages of one start. started_ns: when the program started; submitted_ns: when the prompt was
// submitted.
std::vector<StartupStage> startup_stages(std::int64_t started_ns, const runtime::EngineInfo& info,
                                         std::int64_t submitted_ns, std::int64_t first_token_ns);

// Runs bench startup several times: starts this program again for each run and prints a combined
// report. Returns the exit code, which is that of the first failed run.
int run_starts(const Options& options);

// One run: its JSON report (format_json()), and the time from fork() to the program's start.
struct StartedRun {
  std::string report;
  double exec_s = 0;
};
// The combined report of several runs.
std::string join_starts(const std::vector<StartedRun>& runs, bool json);

}  // namespace nvllm::launcher
