#include "cluster/task.h"

#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <string_view>

#include "base/error.h"

namespace nvllm::cluster {
namespace {

std::string_view text_of(const Environment& environment, const char* name) {
  const char* const text = environment(name);
  return text == nullptr ? std::string_view() : std::string_view(text);
}

int number_of(const Environment& environment, const char* name) {
  const std::string_view text = text_of(environment, name);
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) {
    fail(name, "='", text, "' is no number; start the program with mpirun or srun, or unset it");
  }
  return number;
}

// Task managers that assign separate GPUs to each task set this variable.
bool has_own_gpus(const Environment& environment) {
  return environment("CUDA_VISIBLE_DEVICES") != nullptr;
}

Task task_of_mpirun(const Environment& environment) {
  Task task{.boxes = number_of(environment, "OMPI_COMM_WORLD_SIZE"),
            .box = number_of(environment, "OMPI_COMM_WORLD_RANK"),
            .starter = "mpirun"};
  const int here = number_of(environment, "OMPI_COMM_WORLD_LOCAL_SIZE");
  task.shares_machine = here > 1;
  if (task.shares_machine && !has_own_gpus(environment)) {
    fail("mpirun has started ", here,
         " tasks on one box: nvllm wants one on each, which starts the box's ranks; pass mpirun "
         "--map-by ppr:1:node, or give each task GPUs of its own with CUDA_VISIBLE_DEVICES");
  }
  return task;
}

Task task_of_srun(const Environment& environment) {
  Task task{.boxes = number_of(environment, "SLURM_STEP_NUM_TASKS"),
            .box = number_of(environment, "SLURM_PROCID"),
            .starter = "srun"};
  // "1(x4)": one on each of four boxes.
  const std::string_view dealt = text_of(environment, "SLURM_STEP_TASKS_PER_NODE");
  const bool one_each = dealt == "1" || (dealt.starts_with("1(x") && dealt.ends_with(')') &&
                                         dealt.find(',') == std::string_view::npos);
  task.shares_machine = task.boxes > 1 && !one_each;
  if (task.shares_machine && !has_own_gpus(environment)) {
    fail("srun has started ", dealt,
         " tasks on its boxes: nvllm wants one on each, which starts the box's ranks; pass srun "
         "--ntasks-per-node=1, or give each task GPUs of its own (--gpus-per-task)");
  }
  return task;
}

}  // namespace

Task find_task(const Environment& environment) {
  Task task;
  if (environment("OMPI_COMM_WORLD_SIZE") != nullptr) {
    task = task_of_mpirun(environment);
  } else if (environment("PMIX_RANK") != nullptr &&
             environment("SLURM_STEP_NUM_TASKS") != nullptr) {
    task = task_of_srun(environment);
  } else if (environment("PMI_RANK") != nullptr && environment("PMI_SIZE") != nullptr &&
             number_of(environment, "PMI_SIZE") > 1) {
    fail("started as one of ", text_of(environment, "PMI_SIZE"),
         " tasks by MPICH's mpiexec, or by srun --mpi=pmi2: groups over boxes need Open MPI; use "
         "its mpirun, or srun --mpi=pmix");
  }
  if (task.boxes < 1 || task.box >= task.boxes) {
    fail("task ", task.box, " of ", task.boxes, " tasks of ", task.starter, " does not exist");
  }
  return task;
}

Task find_task() {
  return find_task([](const char* name) { return ::getenv(name); });
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::vector<int> deal_ranks(int ranks, int stages, int boxes) {
  const int of_stage = ranks / stages;
  if (ranks < boxes && stages == 1) {
    fail("--tp ", ranks, ": is less than one rank for each of ", boxes, " boxes; pass --tp ", boxes,
         " or more, or start fewer tasks");
  }
  if (ranks < boxes) {
    fail("--pp ", stages, ": so many stages of --tp ", of_stage,
         " are less than one rank for each of ", boxes,
         " boxes; pass a larger --tp or --pp, or start fewer tasks");
  }
  const int unit = stages >= boxes ? of_stage : 1, units = ranks / unit;
  std::vector<int> dealt(static_cast<std::size_t>(boxes), units / boxes * unit);
  for (int box = 0; box < units % boxes; ++box) dealt[static_cast<std::size_t>(box)] += unit;
  return dealt;
}

}  // namespace nvllm::cluster
