#pragma once

#include <functional>
#include <string>
#include <vector>

#include "device/backend.h"
#include "launcher/options.h"

namespace nvllm::launcher {

// Which workers to start, of what the options ask for and what this machine has.
struct LaunchPlan {
  DeviceKind device = DeviceKind::cpu;
  int ranks = 1;
  std::vector<std::string>
      gpus;  // of each rank, as values for CUDA_VISIBLE_DEVICES; on the CPU empty
};

// The GPUs of this machine (visible_gpus() of device/topology.h). Asked only if they may be needed:
// that costs a CPU run nothing.
using FindGpus = std::function<std::vector<std::string>(std::string* why_none)>;

// Throws UsageError if the machine has not what was asked for.
LaunchPlan plan_launch(const GroupOptions& options, bool cuda_built, const FindGpus& find_gpus);

// How many ranks there would be, for who only wants to know. More than this machine has is fine.
int plan_ranks(const GroupOptions& options, bool cuda_built, const FindGpus& find_gpus);

}  // namespace nvllm::launcher
