// bench startup: measures the time from the start of the program to the first token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/bench/load_generator.h"
#include "launcher/bench/report.h"
#include "launcher/cli/options.h"
#include "runtime/engine/engine_messages.h"

namespace nvllm::launcher {

// The stages of one start. started_ns: when the program started; submitted_ns: when the prompt was.
std::vector<StartupStage> startup_stages(std::int64_t started_ns, const runtime::EngineInfo& info,
                                         std::int64_t submitted_ns, std::int64_t first_token_ns);

// Runs bench startup several times: starts this program anew for each run and prints their common
// report. Returns the exit code, which is that of the first run that failed.
int run_starts(const Options& options);

// One run: its report as JSON (format_json()), and how long the program took to be started.
struct StartedRun {
  std::string report;
  double exec_s = 0;
};
// The common report of several runs.
std::string join_starts(const std::vector<StartedRun>& runs, bool json);

}  // namespace nvllm::launcher
