// Task: which of several tasks of mpirun or srun this process is. One task runs on each box; a
// machine whose GPUs are divided among several tasks is several boxes.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace nvllm::cluster {

struct Task {
  int boxes = 1;  // 1: nobody has started several tasks
  int box = 0;
  std::string starter;  // "mpirun", "srun"; empty: neither
  // There are other tasks on this machine, and each has been given GPUs of its own: every task
  // counts as a box.
  bool shares_machine = false;
};

// getenv(), but in tests.
using Environment = std::function<const char*(const char*)>;

// An Error if several tasks are on one machine and CUDA_VISIBLE_DEVICES does not say which GPUs are
// this one's, or if they were started by something else than Open MPI or srun with PMIx.
Task find_task(const Environment& environment);
Task find_task();  // of this process's environment

// This machine's name; "" if it has none.
std::string host_name();

// How many of the ranks each box gets, in rank order. Whole pipeline stages, where there are enough
// of them, because the ranks of a stage exchange much more than stages do; else ranks. As even as
// can be: the first boxes get one more. An Error if there are fewer ranks than boxes. ranks: of all
// stages.
std::vector<int> deal_ranks(int ranks, int stages, int boxes);

}  // namespace nvllm::cluster
