#pragma once

#include <string>
#include <vector>

#include "launcher/bench/report.h"
#include "launcher/options.h"

namespace nvllm::launcher {

// bench startup, several times: starts this very program anew for each run, prints what they have in
// common and returns the exit code, which is that of the first run that failed.
int run_starts(const Options& options);

// Of several runs' reports as JSON (format_json() of one run each), and how long each took to be started.
struct StartedRun {
  std::string report;
  double exec_s = 0;
};
std::string join_starts(const std::vector<StartedRun>& runs, bool json);

}  // namespace nvllm::launcher
