// Supervisor: the thread that watches the workers, from the last fork until every one of them has
// been reaped. It notices immediately when a worker ends (pidfd), and within the step timeout when
// a worker is alive but makes no progress. It stops the group on SIGINT, SIGTERM and SIGHUP, and
// prints a report on the console.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/logging.h"
#include "base/unique_fd.h"
#include "ipc/group.h"
#include "launcher/supervise/child.h"
#include "launcher/supervise/console.h"
#include "launcher/supervise/post_mortem.h"
#include "launcher/supervise/signal_watch.h"

namespace nvllm::launcher {

// Called in the supervisor's thread with a signal that asks the program to stop. True: the program
// handles it, and the workers continue; otherwise they end.
using SignalHandler = std::function<bool(int signal)>;

// Called in the supervisor's thread with the exit code when the workers have ended but another
// thread is too busy, or blocked, to call finish(). It may end the process.
using OnFinishTimeout = std::function<void(int exit_code)>;

class Supervisor {
 public:
  // Time limit for a rank with a heartbeat to become ready, or the step timeout if that is longer:
  // a cold driver is slow. On the CPU a start takes milliseconds.
  static constexpr Nanoseconds kStartLimit = std::chrono::seconds(60);
  static constexpr Nanoseconds kCpuStartLimit = std::chrono::seconds(5);
  // A worker is never considered silent or missing sooner than this, however short the step timeout
  // is.
  static constexpr Nanoseconds kMinSilence = std::chrono::seconds(1);
  // Time for the other workers to end by themselves after a failure.
  static constexpr Nanoseconds kGrace = std::chrono::milliseconds(100);
  // The same after SIGINT or SIGTERM. A worker that is killed then also needs time to die, and
  // everything together must take less than 2 s.
  static constexpr Nanoseconds kStopLimit = std::chrono::milliseconds(1200);
  // The same after the work is done, and the last step has ended.
  static constexpr Nanoseconds kEndLimit = std::chrono::seconds(10);
  // Records arrive at least twice a second: a box is lost if none arrives for this long.
  static constexpr Nanoseconds kBoxQuiet = std::chrono::milliseconds(1800);
  // How long the starter of the boxes may need to detect a lost one.
  static constexpr Nanoseconds kStarterLimit = std::chrono::seconds(8);
  // Time limit of the link's end, after everything has been reported.
  static constexpr Nanoseconds kEndLinkLimit = std::chrono::milliseconds(1400);
  // After a failure or a signal has ended the workers, the supervisor waits this long for finish()
  // (after a failure as long as the constructor's argument says), but no longer once another signal
  // arrives.
  static constexpr Nanoseconds kFinishLimit = std::chrono::milliseconds(700);

  // All arguments must outlive the supervisor, and nothing else may use the children from now on.
  Supervisor(const ipc::Group& group, std::vector<Child>& children, SignalWatch& signals,
             Console& console, SignalHandler on_signal = nullptr,
             OnFinishTimeout on_finish_timeout = nullptr, Nanoseconds finish_limit = kFinishLimit,
             Nanoseconds start_limit = kStartLimit, Child* link = nullptr);
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;
  ~Supervisor();  // ends the workers, if finish() has not

  // The workers are about to be asked to end: from now on an exit code of 0 is not a failure.
  void expect_end() { ending_ = true; }
  // Without an error: the workers were asked to end; waits until they have. With an error, the run
  // has failed: determines whether a worker is the culprit, prints its post-mortem or else the
  // error (unless it is empty), and ends the workers. Returns the program's exit code.
  int finish(const std::optional<std::string>& error);
  // On boxes other than the first: waits until the workers here have ended, because the first box
  // has no more work for them or because of a failure. Returns the program's exit code.
  int follow();

 private:
  // The state of one rank remembered between rounds.
  struct Progress {
    std::uint64_t calls = 0, collectives = 0, step = 0, within_step = 0;
    ipc::Phase phase = ipc::Phase::absent;
    std::int64_t since_ns = 0;  // when one of the above last changed
  };

  // A process's end and signals wake the supervisor immediately; everything else is polled this
  // often.
  static constexpr Nanoseconds kRound = std::chrono::milliseconds(50);

  void run();
  // Whether a box other than the first has done its part.
  bool followed_to_end(const std::vector<WorkerView>& views) const;
  // After the workers' end: calls on_finish_timeout_ if finish() is not called in time.
  void await_finish();
  void wait_for_event(Nanoseconds limit);
  void update_children();
  bool all_ended() const;
  // Waits until all have ended, the limit has passed, or a signal has arrived (then interrupted_by_
  // is set). False: not all have ended.
  bool await_end(Nanoseconds limit);
  void kill_all();
  // After an abort: waits for the workers to end, and kills those that do not.
  void stop_workers();
  // Waits for a signal that asks the program to stop, up to the limit.
  void await_signal(Nanoseconds limit);

  // If the group spans boxes: stores the state of this box's workers for the others; why the link
  // has failed, if it has; and the link's end, after everything was reported.
  void note_workers();
  std::optional<std::string> link_failure() const;
  void await_link(Nanoseconds limit);
  void end_link();
  // How long nothing has arrived from a box; zero for this one.
  Nanoseconds quiet_of(int box) const;
  // A box that has been lost, if any.
  std::optional<int> lost_box() const;
  void await_starter();
  void await_first_box();

  std::vector<WorkerView> view_workers();
  // Whether a worker has ended as requested. If the system does not say how it ended, its record
  // does: leaving the group is a member's last action.
  static bool ended_well(const WorkerView& worker);
  WorkerView view_here(int rank) const;
  WorkerView view_elsewhere(int rank) const;
  // How long the rank may be busy without progress.
  Nanoseconds limit_of(const ipc::RankSnapshot& record) const;
  void check_progress(WorkerView& worker);
  void restore_activity(WorkerView& worker);
  // The culprit at this moment, if any; fills `views`.
  std::optional<Culprit> find_failure(std::vector<WorkerView>& views);

  // Describes kills by the kernel's OOM killer since the start; empty: none.
  std::string out_of_memory() const;

  // Whether another box has ended the run, and reports the reason itself.
  bool ended_elsewhere(const std::vector<WorkerView>& views, const Culprit& culprit) const;

  // Ends the run if the link or a worker has failed, and returns whether it has; fills `views`.
  bool ended_by_failure(std::vector<WorkerView>& views);

  // The signal that has ended a child because it was sent to the whole process group, if so: one
  // that the launcher has already handled, or receives within a moment.
  std::optional<int> signal_to_all(const std::optional<ExitStatus>& of_child);

  // The ways in which a run ends (supervisor_ends.cc); each ends the workers and sets exit_code_.
  void end_after_signal(int signal);
  void end_after_failure(std::vector<WorkerView> views, const Culprit& culprit);
  void end_after_error(const std::string& error);
  void end_after_work();
  void end_after_link(const std::string& why);
  void end_after_other_box();
  void log(LogLevel level, const std::string& text);

  const ipc::Group& group_;
  std::vector<Child>& children_;
  Child* const link_;  // nullptr: there is one box
  const int first_;    // first rank on this box
  SignalWatch& signals_;
  Console& console_;
  const SignalHandler on_signal_;
  const OnFinishTimeout on_finish_timeout_;
  const Nanoseconds finish_limit_;
  const Nanoseconds start_limit_;
  const std::uint64_t oom_kills_before_;
  UniqueFd wake_;  // an eventfd: finish() has been called

  // Used by the supervisor's thread only.
  std::vector<Progress> progress_;
  std::vector<ipc::RankSnapshot> last_healthy_;  // of each rank, from before any failure
  std::int64_t last_look_ns_;
  const std::int64_t started_ns_ = now_ns();
  std::int64_t counting_since_ns_;  // earlier time does not count towards timeouts
  std::optional<int> interrupted_by_;
  std::optional<int> seen_to_;  // the last signal handled by on_signal_

  std::atomic<bool> ending_;

  // Written before wake_ is set, read after.
  std::atomic<bool> finishing_ = false;
  std::optional<std::string> error_;

  int exit_code_ = 0;  // written by the thread, read after joining it
  std::thread thread_;
};

}  // namespace nvllm::launcher
