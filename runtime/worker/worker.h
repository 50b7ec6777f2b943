// Worker: the life of one rank, from its fork to its end.
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
  std::vector<std::string> gpus;  // of each rank, as values for CUDA_VISIBLE_DEVICES;
                                  // of ranks on other boxes there are none
  std::string collectives = "auto";
  LogLevel log_level = LogLevel::info;
  const OpenModel* model = nullptr;  // to be loaded; must outlive the worker
  int stages = 1;  // of a pipeline: rank = stage * ranks of a stage + number there
};

// Runs in the forked process, whose only thread the caller is. The result is the process's exit
// code: 0, or 1 after an Error, which then stands in the rank's record as its last words.
int run_worker(const ipc::Group& group, int rank, const WorkerOptions& options);

}  // namespace nvllm::runtime
