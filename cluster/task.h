// Task: which of several tasks of mpirun or srun this process is. One task runs on each box; a
// machine whose GPUs are divided among several tasks counts as several boxes.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace nvllm::cluster {

struct Task {
  int boxes = 1;  // 1: there is only one task
  int box = 0;
  std::string starter;  // "mpirun", "srun"; empty: neither
  // There are other tasks on this machine, and each has GPUs of its own: every task counts as a
  // box.
  bool shares_machine = false;
};

// getenv(), except in tests.
using Environment = std::function<const char*(const char*)>;

// An Error if several tasks are on one machine and CUDA_VISIBLE_DEVICES does not assign GPUs to
// this one, or if they were started by anything but Open MPI or srun with PMIx.
Task find_task(const Environment& environment);
Task find_task();  // of this process's environment

// This machine's name; "" if it has none.
std::string host_name();

// Divides the ranks among the boxes, in rank order. Boxes get whole pipeline stages if there are
// enough of them, because the ranks of a stage exchange much more data than stages do; otherwise
// ranks. As even as possible: the first boxes get one more. An Error if there are fewer ranks than
// boxes. ranks: in all stages.
std::vector<int> deal_ranks(int ranks, int stages, int boxes);

}  // namespace nvllm::cluster
