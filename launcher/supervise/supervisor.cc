#include "launcher/supervise/supervisor.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstddef>

#include "base/error.h"
#include "base/system_files.h"
#include "base/thread.h"
#include "launcher/cli/program.h"

namespace nvllm::launcher {

namespace {

// If a round took longer than this, the launcher itself was suspended (Ctrl-Z, a suspended
// machine).
constexpr Nanoseconds kPause = std::chrono::milliseconds(500);
// Ranks detect late peers themselves and know more about them, so they report first.
constexpr Nanoseconds kRanksReportFirst = std::chrono::milliseconds(300);
// Extra time for the last lines, beyond the wait for finish().
constexpr Nanoseconds kLastLinesLimit = std::chrono::milliseconds(100);

}  // namespace

Supervisor::Supervisor(const ipc::Group& group, std::vector<Child>& children, SignalWatch& signals,
                       Console& console, SignalHandler on_signal, OnFinishTimeout on_finish_timeout,
                       Nanoseconds finish_limit, Nanoseconds start_limit, Child* link)
    : group_(group),
      children_(children),
      link_(link),
      first_(group.first_rank(group.box())),
      signals_(signals),
      console_(console),
      on_signal_(std::move(on_signal)),
      on_finish_timeout_(std::move(on_finish_timeout)),
      finish_limit_(finish_limit),
      start_limit_(start_limit),
      oom_kills_before_(oom_kills()),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      progress_(static_cast<std::size_t>(group.size())),
      last_healthy_(static_cast<std::size_t>(group.size())),
      last_look_ns_(now_ns()),
      counting_since_ns_(last_look_ns_),
      // The first box decides when the work is done: other boxes see it when their workers end.
      ending_(group.box() != 0) {
  if (!wake_) fail_errno("eventfd for the supervisor");
  thread_ = start_thread("that watches the workers", [this] {
    run();
    if (on_finish_timeout_) await_finish();
  });
}

Supervisor::~Supervisor() {
  // Whoever unwinds reports why.
  if (thread_.joinable()) finish("");
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

int Supervisor::follow() {
  if (thread_.joinable()) thread_.join();
  return exit_code_;
}

void Supervisor::run() {
  while (true) {
    wait_for_event(kRound);
    if (const auto signal = signals_.next_signal()) {
      if (!on_signal_ || !on_signal_(*signal)) return end_after_signal(*signal);
      seen_to_ = signal;
    }
    // Read before the children are checked: a child that ends after it was asked to is not a
    // failure.
    const bool finishing = finishing_;
    if (finishing && error_) return end_after_error(*error_);
    if (finishing) return end_after_work();
    std::vector<WorkerView> views;
    if (ended_by_failure(views)) return;
    if (followed_to_end(views)) return end_after_work();
  }
}

bool Supervisor::ended_by_failure(std::vector<WorkerView>& views) {
  if (const auto why = link_failure()) {
    end_after_link(*why);
    return true;
  }
  const auto culprit = find_failure(views);
  if (!culprit) return false;
  if (ended_elsewhere(views, *culprit)) {
    end_after_other_box();
  } else {
    end_after_failure(std::move(views), *culprit);
  }
  return true;
}

bool Supervisor::followed_to_end(const std::vector<WorkerView>& views) const {
  return group_.box() != 0 && std::ranges::all_of(views, [](const WorkerView& worker) {
           return !worker.here || worker.done;
         });
}

void Supervisor::await_finish() {
  const std::int64_t ended_ns = now_ns();
  const bool by_signal = exit_code_ >= kExitSignal;
  const Nanoseconds limit = by_signal ? std::min(finish_limit_, kFinishLimit) : finish_limit_;
  bool late = false;
  while (!finishing_ && !late) {
    wait_for_event(kRound);
    late = last_look_ns_ - std::max(ended_ns, counting_since_ns_) > limit.count() ||
           signals_.next_signal();
  }
  if (finishing_) return;
  console_.flush(kLastLinesLimit);
  on_finish_timeout_(exit_code_);
}

void Supervisor::wait_for_event(Nanoseconds limit) {
  std::vector<pollfd> polled = {{signals_.fd(), POLLIN, 0},
                                {finishing_ ? -1 : wake_.get(), POLLIN, 0}};
  bool no_pidfd = false;  // an old kernel: poll more often
  for (const Child& child : children_) {
    if (child.status()) continue;
    polled.push_back({child.pidfd(), POLLIN, 0});
    no_pidfd |= child.pidfd() < 0;
  }
  if (link_ != nullptr && !link_->status()) polled.push_back({link_->pidfd(), POLLIN, 0});
  if (no_pidfd) limit = std::min<Nanoseconds>(limit, std::chrono::milliseconds(10));
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(limit).count();
  ::poll(polled.data(), polled.size(), static_cast<int>(milliseconds));

  const std::int64_t now = now_ns();
  if (now - last_look_ns_ > kPause.count()) counting_since_ns_ = now;
  last_look_ns_ = now;
  update_children();
}

void Supervisor::update_children() {
  for (Child& child : children_) child.update();
  if (link_ == nullptr) return;
  link_->update();
  note_workers();
}

void Supervisor::note_workers() {
  for (std::size_t i = 0; i < children_.size(); ++i) {
    const Child& child = children_[i];
    int status = ipc::RankSnapshot::kRunning;
    if (child.status()) {
      status = child.status()->known() ? child.status()->wait_status()
                                       : ipc::RankSnapshot::kEndedSomehow;
    }
    group_.note_worker(first_ + static_cast<int>(i), status, child.stopped_by().value_or(0));
  }
}

std::optional<std::string> Supervisor::link_failure() const {
  if (link_ == nullptr) return {};
  const ipc::RankSnapshot record = group_.snapshot(ipc::kLink);
  if (!record.error_text.empty()) return record.error_text;
  if (link_->status()) {
    // The link ends by itself when all have ended, or after an abort, which is reported elsewhere.
    if (link_->status()->fine()) return {};
    return str("the link to the other boxes (pid ", link_->pid(),
               ") died: ", link_->status()->describe());
  }
  const auto since = [&](std::int64_t start_ns) {
    return Nanoseconds(last_look_ns_ - std::max(start_ns, counting_since_ns_));
  };
  const bool ready = record.phase == ipc::Phase::ready;
  const Nanoseconds silence = std::max(group_.step_timeout(), kMinSilence);
  if (ready && since(record.heartbeat_ns) > silence) {
    const std::string stopped =
        link_->stopped_by() ? ", stopped by " + signal_name(*link_->stopped_by()) : "";
    return str("the link to the other boxes (pid ", link_->pid(), stopped,
               ") has shown no sign of life for ",
               format_duration(seconds_since(record.heartbeat_ns)));
  }
  if (!ready && since(started_ns_) > std::max(group_.step_timeout(), kStartLimit)) {
    return str("the other boxes have not been found within ",
               format_duration(seconds_since(started_ns_)),
               "; look at what mpirun or srun says of them");
  }
  return {};
}

Nanoseconds Supervisor::quiet_of(int box) const {
  if (box == group_.box()) return Nanoseconds(0);
  // All records of a box arrive together.
  const ipc::RankSnapshot record = group_.snapshot(group_.first_rank(box));
  const bool alive = record.pid != 0 && record.phase != ipc::Phase::ended &&
                     record.wait_status == ipc::RankSnapshot::kRunning;
  if (!alive) return Nanoseconds(0);
  return Nanoseconds(last_look_ns_ - std::max(record.heartbeat_ns, counting_since_ns_));
}

std::optional<int> Supervisor::lost_box() const {
  for (int box = 0; box < group_.boxes(); ++box) {
    if (quiet_of(box) > kBoxQuiet) return box;
  }
  return {};
}

bool Supervisor::ended_well(const WorkerView& worker) {
  if (!worker.status) return false;
  return worker.status->fine() ||
         (!worker.status->known() && worker.record.phase == ipc::Phase::ended &&
          worker.record.error_text.empty());
}

Nanoseconds Supervisor::limit_of(const ipc::RankSnapshot& record) const {
  // Joining is a worker's first action; but another box may start later.
  if (record.pid == 0) {
    return std::max(group_.step_timeout(), group_.is_here(record.rank) ? kMinSilence : kStartLimit);
  }
  if (record.phase == ipc::Phase::ready) return group_.step_timeout() + kRanksReportFirst;
  return std::max(group_.step_timeout(), start_limit_);
}

// Records whether the rank has made progress, and marks it as overdue if it has been busy without
// progress for too long.
void Supervisor::check_progress(WorkerView& worker) {
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
  worker.overdue =
      last_look_ns_ - std::max(last.since_ns, counting_since_ns_) > limit_of(record).count();
  // The launcher of that box knows better, once there is one.
  if (!worker.here && record.pid != 0) worker.overdue = false;
}

// A rank that gave up by itself no longer shows the call or collective in which it failed, so the
// last one seen is restored. (The record of a killed rank is unchanged.)
void Supervisor::restore_activity(WorkerView& worker) {
  ipc::RankSnapshot& healthy = last_healthy_[static_cast<std::size_t>(worker.rank)];
  ipc::RankSnapshot& record = worker.record;
  if (!worker.status && !group_.aborted()) {
    healthy = record;
  } else if (!(worker.status && worker.status->by_signal())) {
    if (record.call.text.empty() && record.call.number == healthy.call.number)
      record.call = healthy.call;
    if (record.collective.text.empty() && record.collective.number == healthy.collective.number) {
      record.collective = healthy.collective;
    }
  }
}

WorkerView Supervisor::view_here(int rank) const {
  const Child& child = children_[static_cast<std::size_t>(rank - first_)];
  return {.rank = rank,
          .pid = child.pid(),
          .status = child.status(),
          .stopped_by = child.stopped_by(),
          .killed_why = {},
          .record = group_.snapshot(rank)};
}

// From the observations of its box's launcher.
WorkerView Supervisor::view_elsewhere(int rank) const {
  WorkerView worker;
  worker.rank = rank;
  worker.here = false;
  worker.record = group_.snapshot(rank);
  worker.pid = worker.record.pid;
  const int status = worker.record.wait_status;
  if (status == ipc::RankSnapshot::kEndedSomehow) {
    worker.status = ExitStatus::unknown();
  } else if (status != ipc::RankSnapshot::kRunning) {
    worker.status.emplace(status);
  }
  if (worker.record.stopped_by != 0) worker.stopped_by = worker.record.stopped_by;
  return worker;
}

std::vector<WorkerView> Supervisor::view_workers() {
  // Data from other boxes is slightly older.
  constexpr Nanoseconds kOnTheWay = std::chrono::seconds(1);
  std::vector<WorkerView> views;
  const Nanoseconds silence = std::max(group_.step_timeout(), kMinSilence);
  for (int rank = 0; rank < group_.size(); ++rank) {
    const bool here = group_.is_here(rank);
    WorkerView worker = here ? view_here(rank) : view_elsewhere(rank);
    if (group_.boxes() > 1) worker.box = group_.box_text(group_.box_of(rank));
    worker.box_silent = quiet_of(group_.box_of(rank)) > kBoxQuiet;
    worker.done = ending_ && ended_well(worker);
    check_progress(worker);
    restore_activity(worker);
    const bool joined = worker.record.pid != 0;
    worker.silent = joined && !worker.status &&
                    last_look_ns_ - std::max(worker.record.heartbeat_ns, counting_since_ns_) >
                        (here ? silence : silence + kOnTheWay).count();
    views.push_back(std::move(worker));
  }
  return views;
}

std::optional<Culprit> Supervisor::find_failure(std::vector<WorkerView>& views) {
  views = view_workers();
  return find_culprit(views, group_.aborted());
}

bool Supervisor::ended_elsewhere(const std::vector<WorkerView>& views,
                                 const Culprit& culprit) const {
  const WorkerView& guilty = views[static_cast<std::size_t>(culprit.rank)];
  if (!guilty.here) return group_.box() != 0;  // the first box reports everything
  const bool by_itself =
      guilty.silent || guilty.stopped_by || (guilty.status && guilty.status->by_signal());
  return group_.abort_box() != ipc::Group::kThisBox && !by_itself;
}

void Supervisor::log(LogLevel level, const std::string& text) {
  if (log_enabled(level)) console_.print(format_log_line("launcher", level, text));
}

}  // namespace nvllm::launcher
