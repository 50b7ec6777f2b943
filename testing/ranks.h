// Tests with several processes: each rank of a group is a forked child.
//
//   run_ranks(4, [](ipc::Member& me) { CHECK(sum_over_ranks(me) == 6); });
//
// doctest's assertions work in the children: the parent reports their failures and exceptions as
// failures of its running test case, with the rank. The parent must not have threads, nor a CUDA
// context, at the time of the call.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "ipc/group.h"

namespace nvllm::testing {

using RankBody = std::function<void(ipc::Member&)>;

// Time limit for the children of a test, after which they are killed and the test fails.
inline constexpr Nanoseconds kRanksDeadline = std::chrono::seconds(120);

// Forks the ranks, runs body in each and waits for all of them. If a rank fails, the group is
// aborted, so that the others end at once.
void run_ranks(int size, const RankBody& body, const ipc::GroupOptions& options = {});

// Runs the body; returns the failures of doctest's assertions and its exception, "" if there are
// none. For children that are forked otherwise.
std::string failures_of(const std::function<void()>& body);

// How a child ended.
struct RankEnd {
  int rank = 0;
  bool hung = false;   // killed after the deadline
  int status = 0;      // as of waitpid()
  std::string report;  // its failures; empty: none

  bool clean() const { return !hung && status == 0 && report.empty(); }
  std::string describe() const;  // "rank 1: killed by SIGKILL"
};

// For tests that disturb their ranks. options.size is overwritten. The children die with this
// process; remaining ones are killed and reaped when the object is destroyed.
class RankProcesses {
 public:
  RankProcesses(int size, const RankBody& body, ipc::GroupOptions options = {});
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  ipc::Group& group() { return group_; }
  pid_t pid(int rank) const { return children_[static_cast<std::size_t>(rank)].pid; }
  void signal(int rank, int signal_number) const;

  // Waits until all have ended; returns them in rank order. With abort_on_failure the first failure
  // aborts the group.
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

// Names of this program ("nvllm-*", "sem.nvllm-*") that remain in /dev/shm. Names of groups that
// are just being created, which exist for microseconds, are not counted.
std::vector<std::string> lingering_shm_names();

}  // namespace nvllm::testing
