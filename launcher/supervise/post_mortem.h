// The report that the launcher prints when a worker ends a run: which worker is to blame, and what
// every rank was doing at that moment. These are pure functions of what the supervisor has seen.
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
  std::string box = {};  // "box 1 (node17)"; empty where there is one
  bool here = true;      // on this box
  pid_t pid = 0;
  std::optional<ExitStatus> status;  // it has ended
  bool done = false;                 // ... as it was asked to
  std::optional<int> stopped_by;     // a signal has stopped it
  bool silent = false;               // no heartbeat for longer than the deadline
  bool box_silent = false;           // nothing comes from its box, whoever is to blame
  std::string killed_why;            // why the kernel killed it, if it did: "out of memory: ..."
  bool overdue = false;              // busy, and no progress for longer than the deadline
  ipc::RankSnapshot record;
};

struct Culprit {
  enum class Kind { died, stuck };
  int rank = 0;
  Kind kind = Kind::died;
};

// Which worker is to blame, if any. `aborted`: a rank has ended the group by itself because another
// one did not do its part.
std::optional<Culprit> find_culprit(const std::vector<WorkerView>& workers, bool aborted);

// The first line of a post-mortem: who is to blame, and why.
std::string post_mortem_line(const std::vector<WorkerView>& workers, const Culprit& culprit,
                             std::int64_t now_ns);

// What every rank was doing, a line for each, where something else than a rank is to blame.
std::string rank_lines(const std::vector<WorkerView>& workers, std::int64_t now_ns);

// One line about the culprit, then one per rank. now_ns: when the views were taken.
std::string post_mortem(const std::vector<WorkerView>& workers, const Culprit& culprit,
                        std::int64_t now_ns);

// How often the kernel's OOM killer has ended a process: of this process's control group, in which
// its workers are too, if the system counts that (oom_kill in memory.events of version 2, in
// memory.oom_control of version 1), else of the machine (/proc/vmstat). It counts before it kills.
// `root` is "/" but in tests.
std::uint64_t oom_kills(const std::string& root = "/");

}  // namespace nvllm::launcher
