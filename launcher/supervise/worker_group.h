// WorkerGroup: the workers of one launch. It creates their shared memory, forks them, relays their
// output and supervises them until the last one has been reaped.
//
//   WorkerGroup workers({.group = {.size = 2}},
//                       [](const ipc::Group& group, int rank) { ... return 0; });
//   ... talk to rank 0 through workers.member(); GroupAborted means that the run is over ...
//   return workers.finish();
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ipc/group.h"
#include "launcher/supervise/child.h"
#include "launcher/supervise/console.h"
#include "launcher/supervise/supervisor.h"

namespace nvllm::launcher {

// Used by one thread, the process's main thread (the workers die with the thread that forked them).
class WorkerGroup {
 public:
  struct Options {
    ipc::GroupOptions group;
    int output = STDERR_FILENO;  // where workers' lines and post-mortems go
    SignalHandler on_signal = nullptr;
    // If the workers have ended and finish() is not called within the limit; see Supervisor.
    OnLate on_late = nullptr;
    Nanoseconds finish_limit = Supervisor::kFinishLimit;
    Nanoseconds start_limit = Supervisor::kStartLimit;
    // What the link to other boxes does; the result is its exit code. Where the group spans boxes.
    std::function<int(const ipc::Group& group)> link = nullptr;
  };
  // What a worker does; the result is its exit code.
  using Body = std::function<int(const ipc::Group& group, int rank)>;

  // The process must have one thread, or others that hold no lock, and no CUDA context until then.
  // On an Error nothing is left.
  WorkerGroup(const Options& options, const Body& body);
  ~WorkerGroup();  // ends the workers, if finish() has not

  ipc::Member& member() { return *member_; }
  Console& console() { return console_; }
  const std::vector<pid_t>& pids() const { return pids_; }

  // See Supervisor. After finish() no worker is left, and all messages about them have been
  // written.
  void expect_end() { supervisor_->expect_end(); }
  int finish(const std::optional<std::string>& error = std::nullopt);
  // On boxes other than the first, instead: waits for as long as the first one works.
  int follow();

 private:
  SignalWatch signals_;
  ipc::Group group_;
  Console console_;
  std::optional<Child> link_;
  std::vector<Child> children_;  // the ranks that are here
  std::vector<pid_t> pids_;
  std::optional<ipc::Member> member_;
  std::optional<Supervisor> supervisor_;
};

}  // namespace nvllm::launcher
