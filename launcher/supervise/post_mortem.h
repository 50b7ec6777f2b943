// The report that the launcher prints when a worker ends a run: the culprit, and the activity of
// every rank at that moment. These are pure functions of the supervisor's observations.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ipc/group.h"
#include "launcher/supervise/child.h"

namespace nvllm::launcher {

// The state of one worker before the launcher interfered.
struct WorkerView {
  int rank = 0;
  std::string box = {};  // "box 1 (node17)"; empty if there is only one
  bool here = true;      // on this box
  pid_t pid = 0;
  std::optional<ExitStatus> status;  // it has ended
  bool done = false;                 // ended as requested
  std::optional<int> stopped_by;     // a signal has stopped it
  bool silent = false;               // no heartbeat for longer than the timeout
  bool box_silent = false;           // nothing arrives from its box, whatever the reason
  std::string killed_why;            // busy without progress for longer than the timeout
  bool overdue = false;              // busy, and no progress for longer than the deadline
  ipc::RankSnapshot record;
};

struct Culprit {
  enum class Kind { died, stuck };
  int rank = 0;
  Kind kind = Kind::died;
};

// The worker that caused the failure, if any. `aborted`: a rank has aborted the group because
// another one did not respond.
std::optional<Culprit> find_culprit(const std::vector<WorkerView>& workers, bool aborted);

// The first line of a post-mortem: the culprit, and the reason.
std::string post_mortem_line(const std::vector<WorkerView>& workers, const Culprit& culprit,
                             std::int64_t now_ns);

// The activity of every rank, one line each, if the culprit is not a rank.
std::string rank_lines(const std::vector<WorkerView>& workers, std::int64_t now_ns);

// One line about the culprit, then one per rank. now_ns: when the views were taken.
std::string post_mortem(const std::vector<WorkerView>& workers, const Culprit& culprit,
                        std::int64_t now_ns);

// How many processes the kernel's OOM killer has ended: in this process's control group, which
// includes its workers, if the system counts that (oom_kill in memory.events of version 2, in
// memory.oom_control of version 1), otherwise on the machine (/proc/vmstat). The count increases
// before the kill. `root` is "/" except in tests.
std::uint64_t oom_kills(const std::string& root = "/");

}  // namespace nvllm::launcher
