// Supervisor: the thread that watches the workers, from the last fork until every one of them has
// been reaped. It notices at once when a worker ends (pidfd), and within the step timeout when one
// lives but does nothing; it stops the group on SIGINT, SIGTERM and SIGHUP; and it says on the
// console what happened.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/logging.h"
#include "base/unique_fd.h"
#include "ipc/group.h"
#include "launcher/child.h"
#include "launcher/console.h"
#include "launcher/post_mortem.h"
#include "launcher/signals.h"

namespace nvllm::launcher {

class Supervisor {
 public:
  // How long a rank may take from its fork until it is ready, at least: a cold driver needs its
  // time.
  static constexpr Nanoseconds kStartLimit = std::chrono::seconds(60);
  // A worker is not called silent sooner than this, however short the step timeout is.
  static constexpr Nanoseconds kShortestSilence = std::chrono::seconds(1);
  // After a failure: how long the other workers have to end by themselves.
  static constexpr Nanoseconds kGrace = std::chrono::milliseconds(100);
  // After SIGINT or SIGTERM: the same. A worker killed then needs time to die, and all of it is to
  // take less than 2 s.
  static constexpr Nanoseconds kStopLimit = std::chrono::milliseconds(1200);
  // After the work is done.
  static constexpr Nanoseconds kEndLimit = std::chrono::seconds(10);

  // All of it must outlive the supervisor, and nobody else may use the children from now on.
  Supervisor(const ipc::Group& group, std::vector<Child>& children, SignalWatch& signals,
             Console& console);
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;
  ~Supervisor();  // ends the workers, if finish() has not

  // The workers are about to be asked to end: those that do, with exit code 0, are no surprise any
  // more.
  void expect_end() { ending_ = true; }
  // The work is done and the workers were asked to end: waits until they have. With an error, the
  // run has failed: finds out whether a worker is to blame, prints one or the other, and ends the
  // workers. Returns the program's exit code.
  int finish(const std::optional<std::string>& error);

 private:
  // What the supervisor remembers of one rank between two rounds.
  struct Progress {
    std::uint64_t calls = 0, collectives = 0, step = 0, within_step = 0;
    ipc::Phase phase = ipc::Phase::absent;
    std::int64_t since_ns = 0;  // when one of the above last changed
  };

  void run();
  void wait_for_news(Nanoseconds limit);
  void look_at_children();
  bool all_ended() const;
  // Waits until all have ended, or the limit has passed, or a signal has come (then
  // interrupted_by_). False: not all have.
  bool await_end(Nanoseconds limit);
  void kill_all();

  std::vector<WorkerView> view();
  void note_progress(WorkerView& worker);
  void recall_activity(WorkerView& worker);
  // Who is to blame right now; fills `views`.
  std::optional<Culprit> judge(std::vector<WorkerView>& views);

  // The four ways in which a run ends; each ends the workers and sets exit_code_.
  void end_after_signal(int signal);
  void end_after_failure(std::vector<WorkerView> views, const Culprit& culprit);
  void end_after_error(const std::string& error);
  void end_after_work();
  void say(LogLevel level, const std::string& text);

  const ipc::Group& group_;
  std::vector<Child>& children_;
  SignalWatch& signals_;
  Console& console_;
  UniqueFd wake_;  // an eventfd: finish() has been called

  // Of the thread.
  std::vector<Progress> progress_;
  std::vector<ipc::RankSnapshot> last_calm_;  // of each rank, when nothing had gone wrong yet
  std::int64_t last_look_ns_;
  std::int64_t counting_since_ns_;  // time before this is not held against anybody
  std::optional<int> interrupted_by_;

  std::atomic<bool> ending_ = false;

  // Written before wake_ is raised, read after.
  std::atomic<bool> finishing_ = false;
  std::optional<std::string> error_;

  int exit_code_ = 0;  // written by the thread, read after it has been joined
  std::thread thread_;
};

}  // namespace nvllm::launcher
