#include "launcher/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstddef>

#include "base/error.h"
#include "base/thread.h"
#include "launcher/exit_code.h"

namespace nvllm::launcher {
namespace {

// Ends of processes and signals wake the supervisor at once; this is for what has to be looked at.
constexpr Nanoseconds kRound = std::chrono::milliseconds(50);
// A round that took longer than this: the launcher itself did not run (Ctrl-Z, a suspended
// machine).
constexpr Nanoseconds kPause = std::chrono::milliseconds(500);
// The ranks notice by themselves that a peer is late, and know more about it: they go first.
constexpr Nanoseconds kRanksGoFirst = std::chrono::milliseconds(300);
// How long after a worker's death by SIGTERM the launcher's own SIGTERM may come: one who stops a
// whole process group or service sends it to all.
constexpr Nanoseconds kSameSignal = std::chrono::milliseconds(30);
// The error of a call may reach the launcher before the news of what caused it.
constexpr Nanoseconds kCauseMayFollow = std::chrono::milliseconds(50);
// How long the kernel may need to end killed processes before the launcher leaves without them.
constexpr Nanoseconds kReapLimit = std::chrono::seconds(5);

}  // namespace

Supervisor::Supervisor(const ipc::Group& group, std::vector<Child>& children, SignalWatch& signals,
                       Console& console)
    : group_(group),
      children_(children),
      signals_(signals),
      console_(console),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      progress_(children.size()),
      last_calm_(children.size()),
      last_look_ns_(now_ns()),
      counting_since_ns_(last_look_ns_) {
  if (!wake_) fail_errno("eventfd for the supervisor");
  thread_ = start_thread("that watches the workers", [this] { run(); });
}

Supervisor::~Supervisor() {
  if (thread_.joinable()) finish("the launcher gave up");
}

int Supervisor::finish(const std::optional<std::string>& error) {
  if (thread_.joinable()) {
    error_ = error;
    finishing_ = true;
    ::eventfd_write(wake_.get(), 1);
    thread_.join();
  }
  return exit_code_;
}

void Supervisor::run() {
  while (true) {
    wait_for_news(kRound);
    if (const auto signal = signals_.take()) return end_after_signal(*signal);
    // Before the children are looked at: whoever has ended by then without being asked to is no
    // surprise.
    const bool finishing = finishing_;
    if (finishing && error_) return end_after_error(*error_);
    if (finishing) return end_after_work();
    std::vector<WorkerView> views;
    if (const auto culprit = judge(views)) return end_after_failure(std::move(views), *culprit);
  }
}

void Supervisor::wait_for_news(Nanoseconds limit) {
  std::vector<pollfd> polled = {{signals_.fd(), POLLIN, 0},
                                {finishing_ ? -1 : wake_.get(), POLLIN, 0}};
  bool blind = false;  // a kernel without pidfd: look more often
  for (const Child& child : children_) {
    if (child.status()) continue;
    polled.push_back({child.pidfd(), POLLIN, 0});
    blind |= child.pidfd() < 0;
  }
  if (blind) limit = std::min<Nanoseconds>(limit, std::chrono::milliseconds(10));
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(limit).count();
  ::poll(polled.data(), polled.size(), static_cast<int>(milliseconds));

  const std::int64_t now = now_ns();
  if (now - last_look_ns_ > kPause.count()) counting_since_ns_ = now;
  last_look_ns_ = now;
  look_at_children();
}

void Supervisor::look_at_children() {
  for (Child& child : children_) child.look();
}

bool Supervisor::all_ended() const {
  return std::all_of(children_.begin(), children_.end(),
                     [](const Child& child) { return child.status(); });
}

bool Supervisor::await_end(Nanoseconds limit) {
  const std::int64_t end = now_ns() + limit.count();
  while (!all_ended()) {
    const Nanoseconds left(end - now_ns());
    if (left.count() <= 0) return false;
    wait_for_news(std::min(left, kRound));
    interrupted_by_ = signals_.take();
    if (interrupted_by_) return all_ended();
  }
  return true;
}

void Supervisor::kill_all() {
  for (const Child& child : children_) child.kill();
}

// Notes whether the rank has moved on, and marks it as overdue if it is busy and has not for too
// long.
void Supervisor::note_progress(WorkerView& worker) {
  Progress& last = progress_[static_cast<std::size_t>(worker.rank)];
  const ipc::RankSnapshot& record = worker.record;
  const Progress now{record.call.number, record.collective.number,
                     record.step,        record.progress,
                     record.phase,       last_look_ns_};
  const bool moved = now.calls != last.calls || now.collectives != last.collectives ||
                     now.step != last.step || now.within_step != last.within_step ||
                     now.phase != last.phase || last.since_ns == 0;
  const bool ready = record.phase == ipc::Phase::ready;
  const bool busy = !ready || !record.call.text.empty() || !record.collective.text.empty();
  if (moved || !busy) last = now;
  const Nanoseconds limit =
      ready ? group_.step_timeout() + kRanksGoFirst : std::max(group_.step_timeout(), kStartLimit);
  worker.overdue = last_look_ns_ - std::max(last.since_ns, counting_since_ns_) > limit.count();
}

// A rank that gave up by itself has left what it was doing. What it was last seen doing is what it
// failed in. (The record of a rank that was killed stays as it was.)
void Supervisor::recall_activity(WorkerView& worker) {
  ipc::RankSnapshot& calm = last_calm_[static_cast<std::size_t>(worker.rank)];
  ipc::RankSnapshot& record = worker.record;
  if (!worker.status && !group_.aborted()) {
    calm = record;
  } else if (!(worker.status && worker.status->by_signal())) {
    if (record.call.text.empty() && record.call.number == calm.call.number) record.call = calm.call;
    if (record.collective.text.empty() && record.collective.number == calm.collective.number) {
      record.collective = calm.collective;
    }
  }
}

std::vector<WorkerView> Supervisor::view() {
  std::vector<WorkerView> views;
  const std::int64_t silence = std::max(group_.step_timeout(), kShortestSilence).count();
  for (std::size_t rank = 0; rank < children_.size(); ++rank) {
    const Child& child = children_[rank];
    WorkerView worker{.rank = static_cast<int>(rank),
                      .pid = child.pid(),
                      .status = child.status(),
                      .done = ending_ && child.status() && child.status()->fine(),
                      .stopped_by = child.stopped_by(),
                      .record = group_.snapshot(static_cast<int>(rank))};
    note_progress(worker);
    recall_activity(worker);
    const bool joined = worker.record.pid != 0;
    worker.silent =
        joined && !worker.status &&
        last_look_ns_ - std::max(worker.record.heartbeat_ns, counting_since_ns_) > silence;
    views.push_back(std::move(worker));
  }
  return views;
}

std::optional<Culprit> Supervisor::judge(std::vector<WorkerView>& views) {
  views = view();
  return find_culprit(views, group_.aborted());
}

void Supervisor::say(LogLevel level, const std::string& text) {
  if (log_enabled(level)) console_.print(format_log_line("launcher", level, text));
}

void Supervisor::end_after_signal(int signal) {
  const std::string name = signal_name(signal);
  say(LogLevel::info, "stopping: " + name);
  group_.abort("stopped by " + name);
  if (!await_end(kStopLimit)) {
    kill_all();
    await_end(kReapLimit);
  }
  console_.collect();
  exit_code_ = kExitSignal + signal;
}

void Supervisor::end_after_failure(std::vector<WorkerView> views, const Culprit& culprit) {
  const std::int64_t seen_ns = now_ns();
  const auto& guilty = views[static_cast<std::size_t>(culprit.rank)];
  if (guilty.status && (guilty.status->killed_by(SIGTERM) || guilty.status->killed_by(SIGINT))) {
    wait_for_news(kSameSignal);
    if (const auto signal = signals_.take()) return end_after_signal(*signal);
  }

  // The others' last words come only now, when the abort lets go of their waits.
  group_.abort(str("rank ", culprit.rank, " (pid ", guilty.pid, ") ",
                   guilty.status ? guilty.status->describe() : std::string("is alive but stuck")));
  await_end(kGrace);
  auto& culprit_view = views[static_cast<std::size_t>(culprit.rank)];
  if (culprit.kind == Culprit::Kind::died && !culprit_view.status) {
    culprit_view.status = children_[static_cast<std::size_t>(culprit.rank)].status();
  }
  kill_all();
  for (WorkerView& worker : views)
    worker.record.last_words = group_.snapshot(worker.rank).last_words;
  console_.collect();
  console_.print(post_mortem(views, culprit, seen_ns));
  exit_code_ = culprit.kind == Culprit::Kind::died ? kExitDied : kExitStuck;

  // A process that holds a GPU may need a moment to be taken down; the report does not wait for it.
  if (!await_end(kReapLimit)) say(LogLevel::warning, "not all workers have ended yet");
}

void Supervisor::end_after_error(const std::string& error) {
  std::vector<WorkerView> views;
  const std::int64_t start = now_ns();
  for (Nanoseconds left = kCauseMayFollow; left.count() > 0;
       left = kCauseMayFollow - Nanoseconds(now_ns() - start)) {
    if (const auto signal = signals_.take()) return end_after_signal(*signal);
    if (const auto culprit = judge(views)) return end_after_failure(std::move(views), *culprit);
    wait_for_news(left);
  }
  group_.abort("the run failed: " + error);
  if (!await_end(kStopLimit)) {
    kill_all();
    await_end(kReapLimit);
  }
  console_.collect();
  console_.print("nvllm-launch: " + error + '\n');
  exit_code_ = kExitFailed;
}

void Supervisor::end_after_work() {
  if (!await_end(kEndLimit) && interrupted_by_) return end_after_signal(*interrupted_by_);
  std::vector<WorkerView> views = view();
  for (const WorkerView& worker : views) {
    if (worker.status && worker.status->fine()) continue;
    const auto kind = worker.status ? Culprit::Kind::died : Culprit::Kind::stuck;
    return end_after_failure(std::move(views), {worker.rank, kind});
  }
  console_.collect();
  exit_code_ = kExitFine;
}

}  // namespace nvllm::launcher
