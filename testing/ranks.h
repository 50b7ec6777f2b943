// Tests with several processes: each rank of a group is a forked child.
//
//   run_ranks(4, [](ipc::Member& me) { CHECK(sum_over_ranks(me) == 6); });
//
// doctest's assertions work in the children: what fails there, and what is thrown, is reported by
// the parent as a failure of its running test case, with the rank. The parent must not have
// threads, nor a CUDA context, at the time of the call.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "ipc/group.h"

namespace nvllm::testing {

using RankBody = std::function<void(ipc::Member&)>;

// How long a test waits for its children before it kills them and calls that a failure.
inline constexpr Nanoseconds kRanksDeadline = std::chrono::seconds(120);

// Forks the ranks, runs body in each and waits for all of them. If a rank fails, the group is
// aborted, so that the others end at once.
void run_ranks(int size, const RankBody& body, const ipc::GroupOptions& options = {});

// How a child ended.
struct RankEnd {
  int rank = 0;
  bool hung = false;   // it was killed after the deadline
  int status = 0;      // as of waitpid()
  std::string report;  // what failed in it; empty: nothing

  bool clean() const { return !hung && status == 0 && report.empty(); }
  std::string describe() const;  // "rank 1: killed by SIGKILL"
};

// For tests that do something to their ranks. options.size is overwritten. The children die with
// this process; what is left of them when the object goes is killed and reaped.
class RankProcesses {
 public:
  RankProcesses(int size, const RankBody& body, ipc::GroupOptions options = {});
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  ipc::Group& group() { return group_; }
  pid_t pid(int rank) const { return children_[static_cast<std::size_t>(rank)].pid; }
  void signal(int rank, int signal_number) const;

  // Waits until all have ended, in rank order of the result. With abort_on_failure the first
  // failure aborts the group.
  std::vector<RankEnd> wait_all(bool abort_on_failure = false, Nanoseconds limit = kRanksDeadline);

 private:
  struct Child {
    pid_t pid = 0;
    UniqueFd reports;  // the child writes its failures, and closes it by ending
    bool ended = false;
    RankEnd end;
  };
  void read_report(Child& child);
  void reap(Child& child);

  ipc::Group group_;
  std::vector<Child> children_;
};

// Names of this program's kind ("nvllm-*", "sem.nvllm-*") that stay in /dev/shm. Groups that are
// just being made elsewhere have names for microseconds; those are not counted.
std::vector<std::string> lingering_shm_names();

}  // namespace nvllm::testing
