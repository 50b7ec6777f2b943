// Task: which of several tasks of mpirun or srun this process is. One task runs on each box.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace nvllm::cluster {

struct Task {
  int boxes = 1;  // 1: nobody has started several tasks
  int box = 0;
  std::string starter;  // "mpirun", "srun"; empty: neither
};

// getenv(), but in tests.
using Environment = std::function<const char*(const char*)>;

// An Error if the tasks are not one on each box, or were started by something else than Open MPI or
// srun with PMIx.
Task find_task(const Environment& environment);

// How many of the ranks each box gets, in rank order. Whole pipeline stages, where there are enough
// of them, because the ranks of a stage exchange much more than stages do; else ranks. As even as
// can be: the first boxes get one more. An Error if there are fewer ranks than boxes. ranks: of all
// stages.
std::vector<int> deal_ranks(int ranks, int stages, int boxes);

}  // namespace nvllm::cluster
