// What the launcher says when a run ends because of a worker: who is to blame, and what every rank
// was doing at that moment. Pure functions of what the supervisor has seen.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "ipc/group.h"
#include "launcher/child.h"

namespace nvllm::launcher {

// One worker, seen before the launcher interfered.
struct WorkerView {
  int rank = 0;
  pid_t pid = 0;
  std::optional<ExitStatus> status;  // it has ended
  bool done = false;                 // ... as it was asked to
  std::optional<int> stopped_by;     // a signal has stopped it
  bool silent = false;               // no sign of life for longer than the deadline
  bool overdue = false;              // no progress in what it is doing for longer than the deadline
  ipc::RankSnapshot record;
};

struct Culprit {
  enum class Kind { died, stuck };
  int rank = 0;
  Kind kind = Kind::died;
};

// Who is to blame, if anybody is. `aborted`: a rank has ended the group by itself, because another one did
// not do its part.
std::optional<Culprit> find_culprit(const std::vector<WorkerView>& workers, bool aborted);

// One line about the culprit, then one per rank. now_ns: when the views were taken.
std::string post_mortem(const std::vector<WorkerView>& workers, const Culprit& culprit,
                        std::int64_t now_ns);

}  // namespace nvllm::launcher
