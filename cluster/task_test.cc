#include "cluster/task.h"

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <utility>

#include "base/error.h"
#include "cluster/link_process.h"

namespace nvllm::cluster {
namespace {

using Variables = std::map<std::string, const char*>;

Task task_of(const Variables& variables) {
  return find_task([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second;
  });
}

std::string refusal_of(const Variables& variables) {
  try {
    task_of(variables);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

Variables mpirun(const char* size, const char* rank, const char* here) {
  return {{"OMPI_COMM_WORLD_SIZE", size},
          {"OMPI_COMM_WORLD_RANK", rank},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", here}};
}

Variables srun(const char* tasks, const char* each) {
  return {{"PMIX_RANK", "1"},
          {"SLURM_STEP_NUM_TASKS", tasks},
          {"SLURM_PROCID", "1"},
          {"SLURM_STEP_TASKS_PER_NODE", each}};
}

}  // namespace

TEST_CASE("a task of mpirun or srun knows its box; without them there is one") {
  CHECK(task_of({}).boxes == 1);
  const Task of_mpirun = task_of(mpirun("3", "2", "1"));
  CHECK(of_mpirun.boxes == 3);
  CHECK(of_mpirun.box == 2);
  CHECK(of_mpirun.starter == "mpirun");
  const Task of_srun = task_of(srun("4", "1(x4)"));
  CHECK(of_srun.boxes == 4);
  CHECK(of_srun.box == 1);
  // A job step of srun without PMIx is not a group: replicas are started this way.
  CHECK(task_of({{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "1"}}).boxes == 1);
  // mpirun -n 1.
  CHECK(task_of(mpirun("1", "0", "1")).boxes == 1);
}

TEST_CASE("tasks of one machine that were given GPUs of their own are boxes") {
  for (Variables variables : {mpirun("2", "1", "2"), srun("2", "2")}) {
    variables["CUDA_VISIBLE_DEVICES"] = "1";
    const Task task = task_of(variables);
    CHECK(task.boxes == 2);
    CHECK(task.box == 1);
    CHECK(task.shares_machine);
  }
}

TEST_CASE("tasks that are not one on each box are refused, and so is another MPI") {
  CHECK(refusal_of(mpirun("2", "0", "2")).find("mpirun has started 2 tasks on one box") == 0);
  CHECK(refusal_of(srun("4", "2(x2)")).find("srun has started 2(x2) tasks") == 0);
  CHECK(refusal_of(srun("3", "2,1")).find("srun has started 2,1 tasks") == 0);
  CHECK_FALSE(task_of(mpirun("2", "0", "1")).shares_machine);
  CHECK(refusal_of({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}).find("MPICH") != std::string::npos);
  CHECK(refusal_of({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}) == "none");
  CHECK(refusal_of(mpirun("two", "0", "1")) ==
        "OMPI_COMM_WORLD_SIZE='two' is no number; start the program with mpirun or srun, or unset "
        "it");
  CHECK(refusal_of(mpirun("2", "2", "1")) == "task 2 of 2 tasks of mpirun does not exist");
}

TEST_CASE("ranks are dealt to the boxes in order, the first ones get one more") {
  using Dealt = std::vector<int>;
  CHECK(deal_ranks(2, 1, 2) == Dealt{1, 1});
  CHECK(deal_ranks(3, 1, 2) == Dealt{2, 1});
  CHECK(deal_ranks(8, 1, 3) == Dealt{3, 3, 2});
  CHECK_THROWS_WITH(deal_ranks(1, 1, 2),
                    "--tp 1: is less than one rank for each of 2 boxes; pass --tp 2 or more, or "
                    "start fewer tasks");
}

TEST_CASE("a pipeline stage stays on one box where there are as many stages as boxes") {
  using Dealt = std::vector<int>;
  CHECK(deal_ranks(2, 2, 2) == Dealt{1, 1});
  CHECK(deal_ranks(6, 3, 2) == Dealt{4, 2});
  CHECK(deal_ranks(8, 4, 2) == Dealt{4, 4});
  CHECK(deal_ranks(6, 2, 3) == Dealt{2, 2, 2});
  CHECK_THROWS_WITH(deal_ranks(2, 2, 3),
                    "--pp 2: so many stages of --tp 1 are less than one rank for each of 3 boxes; "
                    "pass a larger --tp or --pp, or start fewer tasks");
}

TEST_CASE("folders of Open MPI are found by their names, and nobody else's is ours to remove") {
  const auto of = [](const char* path) {
    const SessionFolders folders = session_folders(path);
    return std::pair(folders.own, folders.shared);
  };
  using Folders = std::pair<std::string, std::string>;
  // Open MPI 4.1: a folder of the user, and in it one of each run.
  CHECK(of("/tmp/ompi.node1.0/pid.19") == Folders{"/tmp/ompi.node1.0/pid.19", "/tmp/ompi.node1.0"});
  CHECK(of("/tmp/ompi.node2.0/jf.3403") ==
        Folders{"/tmp/ompi.node2.0/jf.3403", "/tmp/ompi.node2.0"});
  // 5.0: one of each run in the temporary directory, which stays.
  CHECK(of("/tmp/ompi.19") == Folders{"/tmp/ompi.19", ""});
  CHECK(of("/tmp/prted.10") == Folders{"/tmp/prted.10", ""});
  for (const char* path : {"", "/", "/tmp", "/var/spool/slurmd/pmix.17.0", "pid.19"}) {
    CHECK(of(path) == Folders{});
  }
}

TEST_CASE("an idle link sleeps longer and longer, 8 ms at most") {
  using std::chrono::microseconds;
  CHECK(link_pause(microseconds(10), false).count() == 0);
  CHECK(link_pause(microseconds(1000), true).count() == 0);
  CHECK(link_pause(microseconds(1600), false) == microseconds(100));
  CHECK(link_pause(microseconds(16'000), true) == microseconds(1000));
  CHECK(link_pause(std::chrono::seconds(10), true) == std::chrono::milliseconds(8));
}

}  // namespace nvllm::cluster
