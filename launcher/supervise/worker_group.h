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
    // Called if the workers have ended and finish() is not called within the limit; see Supervisor.
    OnFinishTimeout on_finish_timeout = nullptr;
    Nanoseconds finish_limit = Supervisor::kFinishLimit;
    Nanoseconds start_limit = Supervisor::kStartLimit;
    // The link process to other boxes, which returns its exit code. Used if the group spans boxes.
    std::function<int(const ipc::Group& group)> link = nullptr;
  };
  // The body of a worker, which returns its exit code.
  using Body = std::function<int(const ipc::Group& group, int rank)>;

  // The process must have one thread, or others that hold no lock, and no CUDA context so far.
  // After an Error nothing is left running.
  WorkerGroup(const Options& options, const Body& body);
  ~WorkerGroup();  // stops the workers, unless finish() has

  ipc::Member& member() { return *member_; }
  Console& console() { return console_; }
  const std::vector<pid_t>& pids() const { return pids_; }

  // See Supervisor. After finish() no worker is left, and all reports about them have been written.
  void expect_end() { supervisor_->expect_end(); }
  int finish(const std::optional<std::string>& error = std::nullopt);
  // On boxes other than the first, instead of finish(): runs for as long as the first one works.
  int follow();

 private:
  SignalWatch signals_;
  ipc::Group group_;
  Console console_;
  std::optional<Child> link_;
  std::vector<Child> children_;  // the ranks on this box
  std::vector<pid_t> pids_;
  std::optional<ipc::Member> member_;
  std::optional<Supervisor> supervisor_;
};

}  // namespace nvllm::launcher
