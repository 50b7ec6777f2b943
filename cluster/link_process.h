// The link: the process of each box that carries the group's memory to and from the other boxes. It
// is forked by the launcher like a worker, and the only process that calls MPI, so that neither the
// launcher nor a rank depends on it, and the state of ranks that are stopped or dead still crosses.
//
//   join the group -> MPI -> compare what the boxes were started with -> ready
//                  -> carry (ipc/mirror.h) until all ranks have ended, or the group is aborted
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/logging.h"
#include "cluster/task.h"
#include "ipc/group.h"

namespace nvllm::cluster {

// Something that must be the same on all boxes: {"the command line", "generate --tp 2 ..."}.
struct Fact {
  std::string name, value;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(name, value);
  }
};

struct LinkOptions {
  Task task;
  std::vector<Fact> facts;
  // The names of the GPUs that the ranks of this box use: no two boxes may name the same.
  std::vector<std::string> gpus = {};
  int stages = 1;  // of a pipeline, which divide the ranks
  LogLevel log_level = LogLevel::info;
};

// A box that nothing has come from for so long counts as lost: between these, the step timeout.
inline constexpr Nanoseconds kMinBoxSilence = std::chrono::seconds(1);
inline constexpr Nanoseconds kMaxBoxSilence = std::chrono::seconds(6);
// After an abort the link stays for so long at most, until the others know why.
inline constexpr Nanoseconds kPartingLimit = std::chrono::milliseconds(1200);

// Runs in the forked process, whose only thread the caller is. The result is its exit code: 0, or 1
// after an Error, which then is the link's last words in its record.
int run_link(const ipc::Group& group, const LinkOptions& options);

// How long an idle link sleeps before it looks again, by how long it has been idle: a sixteenth of
// that, so that a message comes hardly later than if it had not slept, but 8 ms at most. Nothing:
// it spins.
Nanoseconds link_pause(Nanoseconds idle, bool cores_to_spare);

}  // namespace nvllm::cluster
