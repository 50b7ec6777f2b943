// How a run ends: the ways in which a Supervisor ends the workers, the reports that it prints, and
// the exit code.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/system_files.h"
#include "launcher/cli/program.h"
#include "launcher/supervise/supervisor.h"

namespace nvllm::launcher {
namespace {

// Stopping a whole process group or service sends SIGTERM to all of it: the launcher's own signal
// may arrive this long after a worker has died of its.
constexpr Nanoseconds kGroupSignalWindow = std::chrono::milliseconds(30);
// The error of a call may reach the launcher this long before its cause, a dead worker, is
// detected.
constexpr Nanoseconds kCauseWindow = std::chrono::milliseconds(50);
// The first box may exit this long after its report.
constexpr Nanoseconds kCodeWindow = std::chrono::milliseconds(500);
// The launcher exits even if killed processes have not ended after this time.
constexpr Nanoseconds kReapLimit = Child::kEndLimit;

// Ends the daemon of Open MPI that has started this process, and exists for this run only. Its own
// end may block on a network that is gone.
void end_daemon() {
  const pid_t starter = ::getppid();
  const std::string name = system_text(str("/proc/", starter, "/comm"));
  if (name == "orted\n" || name == "prted\n") ::kill(starter, SIGTERM);
}

}  // namespace

bool Supervisor::all_ended() const {
  return std::all_of(children_.begin(), children_.end(),
                     [](const Child& child) { return child.status(); });
}

bool Supervisor::await_end(Nanoseconds limit) {
  const std::int64_t end = now_ns() + limit.count();
  while (!all_ended()) {
    const Nanoseconds left(end - now_ns());
    if (left.count() <= 0) return false;
    wait_for_event(std::min(left, kRound));
    interrupted_by_ = signals_.next_signal();
    if (interrupted_by_) return all_ended();
  }
  return true;
}

void Supervisor::kill_all() {
  for (const Child& child : children_) child.kill();
}

void Supervisor::stop_workers() {
  if (await_end(kStopLimit)) return;
  kill_all();
  await_end(kReapLimit);
}

void Supervisor::await_link(Nanoseconds limit) {
  const std::int64_t end = now_ns() + limit.count();
  while (link_ != nullptr && !link_->status() && now_ns() < end) {
    wait_for_event(std::min<Nanoseconds>(Nanoseconds(end - now_ns()), kRound));
  }
}

void Supervisor::end_link() {
  if (link_ == nullptr) return;
  note_workers();
  group_.note_told();
  await_link(kEndLinkLimit);
  link_->end();
  await_starter();
}

// If this process ended now, mpirun would ask the lost box to end, too, and then wait for the
// network for a quarter of an hour: keepalive works only while nothing is in flight. So mpirun is
// left to detect the loss by itself, which it reports by a signal. On another box, its daemon has a
// line of ours to forward by now, and would wait as long.
void Supervisor::await_starter() {
  const std::optional<int> lost = lost_box();
  if (!lost) return;
  console_.flush(Console::kLastWrites);
  if (group_.box() != 0 && lost == 0) return end_daemon();
  await_signal(kStarterLimit);
}

// mpirun and srun return the exit code of the first task that fails, and then end the others: it
// should be the first box's, which may still have to answer its clients. Its end arrives here as a
// signal.
void Supervisor::await_first_box() {
  if (group_.box() != 0) await_signal(kCodeWindow);
}

void Supervisor::await_signal(Nanoseconds limit) {
  const std::int64_t end = now_ns() + limit.count();
  while (now_ns() < end && !signals_.next_signal()) wait_for_event(kRound);
}

std::string Supervisor::out_of_memory() const {
  if (oom_kills() == oom_kills_before_) return "";
  return "out of memory: the kernel's OOM killer was at work; free memory, raise the limit of its "
         "control group, or pass a smaller --kv-cache-memory-bytes";
}

std::optional<int> Supervisor::signal_to_all(const std::optional<ExitStatus>& of_child) {
  if (!of_child) return {};
  if (seen_to_ && of_child->killed_by(*seen_to_)) return seen_to_;
  if (!of_child->killed_by(SIGTERM) && !of_child->killed_by(SIGINT)) return {};
  wait_for_event(kGroupSignalWindow);
  return signals_.next_signal();
}

void Supervisor::end_after_signal(int signal) {
  const std::string name = signal_name(signal);
  log(LogLevel::info, "stopping: " + name);
  if (const auto box = lost_box()) {
    console_.print(str("nvllm-launch: nothing has come from ", group_.box_text(*box), " for ",
                       format_duration(static_cast<double>(quiet_of(*box).count()) * 1e-9),
                       ": it has failed, or the network to it\n"));
  }
  group_.abort("stopped by " + name);
  stop_workers();
  console_.collect();
  exit_code_ = kExitSignal + signal;
  end_link();
}

// The culprit is not a worker, so no activity needs to be restored.
void Supervisor::end_after_link(const std::string& why) {
  if (const auto signal = signal_to_all(link_->status())) return end_after_signal(*signal);
  const std::int64_t seen_ns = now_ns();
  const std::vector<WorkerView> views = view_workers();
  group_.abort(why);
  await_end(kGrace);
  await_link(kGrace);
  const bool died = !link_->status() || !link_->status()->known() || link_->status()->by_signal() ||
                    WEXITSTATUS(link_->status()->wait_status()) == kExitDied;
  kill_all();
  console_.collect();
  console_.print(str("nvllm-launch: ", why, '\n'));
  if (died && group_.box() == 0) console_.print(rank_lines(views, seen_ns));
  exit_code_ = died ? kExitDied : kExitFailed;
  link_->end();
  if (!await_end(kReapLimit)) log(LogLevel::warning, "not all workers have ended yet");
  await_starter();
}

void Supervisor::end_after_other_box() {
  const int box = group_.abort_box();
  const std::string reason = group_.abort_reason();
  group_.abort(reason);
  stop_workers();
  console_.collect();
  if (group_.box() == 0) {
    console_.print(str("nvllm-launch: ", group_.box_text(box), " ended the run: ", reason, '\n'));
  }
  exit_code_ = kExitFailed;
  end_link();
  await_first_box();
}

void Supervisor::end_after_failure(std::vector<WorkerView> views, const Culprit& culprit) {
  const std::int64_t seen_ns = now_ns();
  const auto& guilty = views[static_cast<std::size_t>(culprit.rank)];
  if (const auto signal = signal_to_all(guilty.status)) return end_after_signal(*signal);

  // The other ranks report their errors only now, when the abort ends their waits.
  group_.abort(str("rank ", culprit.rank, " (pid ", guilty.pid, guilty.box.empty() ? "" : " on ",
                   guilty.box, ") ",
                   guilty.status ? guilty.status->describe() : std::string("is alive but stuck")));
  await_end(kGrace);
  auto& culprit_view = views[static_cast<std::size_t>(culprit.rank)];
  if (culprit.kind == Culprit::Kind::died && !culprit_view.status) {
    culprit_view.status =
        (culprit_view.here ? view_here(culprit.rank) : view_elsewhere(culprit.rank)).status;
  }
  if (culprit_view.status && culprit_view.status->killed_by(SIGKILL)) {
    culprit_view.killed_why = out_of_memory();
  }
  kill_all();
  for (WorkerView& worker : views)
    worker.record.error_text = group_.snapshot(worker.rank).error_text;
  console_.collect();
  // The first box reports everything; of the others, only the culprit's box reports too, in case
  // that the first one cannot.
  if (group_.box() == 0) {
    console_.print(post_mortem(views, culprit, seen_ns));
  } else {
    console_.print(post_mortem_line(views, culprit, seen_ns));
  }
  exit_code_ = culprit.kind == Culprit::Kind::died ? kExitDied : kExitStuck;
  end_link();
  await_first_box();

  // A process that holds a GPU may take a moment to end; the report does not wait for it.
  if (!await_end(kReapLimit)) log(LogLevel::warning, "not all workers have ended yet");
}

void Supervisor::end_after_error(const std::string& error) {
  std::vector<WorkerView> views;
  const std::int64_t start = now_ns();
  for (Nanoseconds left = kCauseWindow; left.count() > 0;
       left = kCauseWindow - Nanoseconds(now_ns() - start)) {
    if (const auto signal = signals_.next_signal()) return end_after_signal(*signal);
    if (ended_by_failure(views)) return;
    wait_for_event(left);
  }
  group_.abort(error.empty() ? "the launcher gave up" : "the run failed: " + error);
  stop_workers();
  console_.collect();
  if (!error.empty()) console_.print("nvllm-launch: " + error + '\n');
  exit_code_ = kExitFailed;
  end_link();
}

void Supervisor::end_after_work() {
  std::vector<WorkerView> views;
  const std::int64_t start = now_ns();
  // A step that is still running may take as long as any.
  const Nanoseconds limit = group_.step_timeout() + kEndLimit;
  while (!await_end(kRound)) {
    if (interrupted_by_) return end_after_signal(*interrupted_by_);
    if (const auto why = link_failure()) return end_after_link(*why);
    // A stopped process, for example, is not waited for as long as one that frees much memory.
    if (const auto culprit = find_failure(views)) {
      return end_after_failure(std::move(views), *culprit);
    }
    if (now_ns() - start > limit.count()) break;
  }
  views = view_workers();
  for (const WorkerView& worker : views) {
    if (!worker.here || ended_well(worker)) continue;
    const auto kind = worker.status ? Culprit::Kind::died : Culprit::Kind::stuck;
    return end_after_failure(std::move(views), {worker.rank, kind});
  }
  // The link ends when the workers of all boxes have ended.
  await_link(kEndLimit);
  if (const auto why = link_failure()) return end_after_link(*why);
  if (link_ != nullptr && !link_->status()) return end_after_link("the other boxes do not end");
  console_.collect();
  exit_code_ = kExitFine;
}

}  // namespace nvllm::launcher
