// Worker: the process of one rank, from fork to exit.
//
//   join the group -> device -> stream -> communicator -> ready
//                            -> the model's weights, at the same time
//   rank 0 serves the front end until it is told to stop, and then stops the others;
//   ranks 1.. serve rank 0's calls.
#pragma once

#include <string>
#include <vector>

#include "base/logging.h"
#include "device/backend.h"
#include "ipc/group.h"
#include "runtime/model/open_model.h"

namespace nvllm::runtime {

struct WorkerOptions {
  DeviceKind device = DeviceKind::cpu;
  std::vector<std::string> gpus;  // CUDA_VISIBLE_DEVICES of each rank of this box
  std::string collectives = "auto";
  LogLevel log_level = LogLevel::info;
  const OpenModel* model = nullptr;  // to be loaded; must outlive the worker
  int stages = 1;  // pipeline stages: rank = stage * ranks per stage + rank in the stage
};

// Runs in the forked process, in which the caller is the only thread. Returns the process's exit
// code: 0, or 1 after an Error, which the rank's record then holds.
int run_worker(const ipc::Group& group, int rank, const WorkerOptions& options);

}  // namespace nvllm::runtime
