// The link: a process on each box that copies the group's memory to and from the other boxes. It is
// forked by the launcher like a worker, and the only process that calls MPI, so that neither the
// launcher nor a rank depends on MPI, and the state of ranks that are stopped or dead is still
// transferred.
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

// A setting that must be equal on all boxes: {"the command line", "generate --tp 2 ..."}.
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
  // The names of the GPUs used by this box's ranks: no two boxes may share one.
  std::vector<std::string> gpus = {};
  int stages = 1;  // pipeline stages, which divide the ranks
  LogLevel log_level = LogLevel::info;
};

// A box from which nothing has arrived for this long counts as lost: three quarters of the step
// timeout, limited to this range. So the link says so before a rank gives up waiting.
inline constexpr Nanoseconds kMinBoxSilence = std::chrono::seconds(1);
inline constexpr Nanoseconds kMaxBoxSilence = std::chrono::seconds(6);
// Maximum time that the link stays after an abort, until the others know the reason.
inline constexpr Nanoseconds kPartingLimit = std::chrono::milliseconds(1200);

// Runs in the forked process, in which the caller is the only thread. Returns its exit code: 0, or
// 1 after an Error, which its record then holds.
int run_link(const ipc::Group& group, const LinkOptions& options);

// Where Open MPI keeps the files of a run on this box.
struct SessionFolders {
  std::string own;     // of this run alone; empty: unknown
  std::string shared;  // what it lies in, with those of other runs; empty: no folder of Open MPI's
};
// By PMIX_SERVER_TMPDIR: /tmp/ompi.HOST.USER/pid.PID (where mpirun is not, jf.NUMBER) of Open MPI
// 4.1, and of 5.0 /tmp/ompi.PID (where mpirun is not, prted.PID). Nothing for any other path: a
// folder that srun, say, has named is not ours to remove.
SessionFolders session_folders(const std::string& server_files);

// How long an idle link sleeps before it polls again: a sixteenth of the time since it became idle,
// so that a message is hardly delayed, and at most 8 ms. 0: it spins.
Nanoseconds link_pause(Nanoseconds idle, bool cores_to_spare);

}  // namespace nvllm::cluster
