#include "ipc/group.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "ipc/group_memory.h"

namespace nvllm::ipc {
namespace {

void validate(const GroupOptions& options) {
  if (options.size < 1 || options.size > kMaxRanks) {
    fail("a group of ", options.size, " ranks is not possible; pass --tp 1 to ", kMaxRanks);
  }
  if (options.step_timeout <= Nanoseconds(0)) {
    fail("a step timeout of ", options.step_timeout.count(),
         " ns is not possible; pass --step-timeout above 0");
  }
  int dealt = 0;
  for (const int ranks : options.box_ranks) {
    NVLLM_CHECK(ranks >= 1, "a box of ", ranks, " ranks");
    dealt += ranks;
  }
  if (options.box_ranks.empty()) return;
  NVLLM_CHECK_EQ(dealt, options.size);
  NVLLM_CHECK(options.box >= 0 && options.box < static_cast<int>(options.box_ranks.size()), "box ",
              options.box);
}

bool several_boxes(const GroupOptions& options) {
  return options.box_ranks.size() > 1;
}

int usable_cores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

ActivitySnapshot snapshot_of(const ActivityCell& cell) {
  const ActivityCell::Value value = cell.read();
  return {std::string(value.view()), value.number, value.since_ns};
}

std::string duration_since(std::int64_t start_ns) {
  return format_duration(std::max(0.0, seconds_since(start_ns)));
}

}  // namespace

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::absent: return "absent";
    case Phase::starting: return "starting";
    case Phase::ready: return "ready";
    case Phase::stopping: return "stopping";
    case Phase::ended: return "ended";
  }
  return "unknown";
}

std::string RankSnapshot::describe() const {
  if (pid == 0) return str(name_of_rank(rank), " (has not joined)");
  std::string text = str(name_of_rank(rank), " (pid ", pid, "), step ", step);
  bool idle = true;
  for (const ActivitySnapshot* activity : {&call, &collective}) {
    if (activity->text.empty()) continue;
    idle = false;
    text += str(", in ", activity->text, " #", activity->number, " for ",
                duration_since(activity->since_ns));
  }
  if (idle) text += str(", ", phase == Phase::ready ? "idle" : name_of(phase));
  if (waits_for != kNobody) text += str(", waiting for ", name_of_rank(waits_for));
  if (phase != Phase::ended && seconds_since(heartbeat_ns) > 2) {
    text += str(", no sign of life for ", duration_since(heartbeat_ns));
  }
  if (!error_text.empty()) text += str(", last error: ", error_text);
  return text;
}

Group::Shared::Shared(const GroupOptions& options)
    : segment(Segment::create(GroupLayout(options).bytes, kGroupKind, Segment::Name::removed)),
      layout(options) {
  auto* group = new (segment.payload().data()) GroupMemory;  // zeroed pages are its initial state
  group->size = options.size;
  group->cores = usable_cores();
  group->step_timeout_ns = options.step_timeout.count();
  group->staging_bytes = options.staging_bytes;
  group->boxes = several_boxes(options) ? static_cast<int>(options.box_ranks.size()) : 1;
  group->box = several_boxes(options) ? options.box : 0;
  std::size_t box = 0;
  if (several_boxes(options)) {
    for (const int ranks : options.box_ranks) {
      group->first_ranks[box + 1] = group->first_ranks[box] + ranks;
      ++box;
    }
  } else {
    group->first_ranks[1] = options.size;
  }
  const auto here = static_cast<std::size_t>(group->box);
  const auto first = static_cast<std::size_t>(group->first_ranks[here]);
  const auto ranks = static_cast<std::size_t>(group->first_ranks[here + 1]) - first;
  for (std::size_t i = 0; i <= ranks; ++i) {
    ProcessBells& bells = group->bells[i == 0 ? 0 : first + i];
    main_bells.emplace_back(bells.main.sleeping);
    collective_bells.emplace_back(bells.collective.sleeping);
  }
  if (several_boxes(options)) link_bell.emplace(group->bells[record_index(kLink)].main.sleeping);
}

Group::Group(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
Group::Group(Group&&) noexcept = default;
Group& Group::operator=(Group&&) noexcept = default;
Group::~Group() = default;

Group Group::create(const GroupOptions& options) {
  validate(options);
  sweep_stale_names();
  return Group(std::make_shared<Shared>(options));
}

std::size_t Group::bytes_needed(const GroupOptions& options) {
  // A semaphore takes one page.
  return Segment::kHeaderBytes + GroupLayout(options).bytes +
         2 * static_cast<std::size_t>(options.size + 1) * GroupLayout::kPage +
         (several_boxes(options) ? GroupLayout::kPage : 0);
}

int Group::size() const {
  return shared_->memory().size;
}

Nanoseconds Group::step_timeout() const {
  return Nanoseconds(shared_->memory().step_timeout_ns);
}

RankSnapshot Group::snapshot(int rank) const {
  shared_->check_rank(rank, kLauncher);
  const ProcessRecord& record = shared_->record(rank);
  RankSnapshot snapshot;
  snapshot.rank = rank;
  snapshot.pid = record.pid.load();
  snapshot.phase = static_cast<Phase>(record.phase.load());
  snapshot.step = record.step.load();
  snapshot.progress = record.progress.load();
  snapshot.heartbeat_ns = record.heartbeat_ns.load();
  snapshot.call = snapshot_of(record.call);
  snapshot.collective = snapshot_of(record.collective);
  snapshot.waits_for = record.waits_for.load() + RankSnapshot::kNobody;
  snapshot.error_text = std::string(record.error_text.read().view());
  snapshot.wait_status = record.wait_status.load() + RankSnapshot::kRunning;
  snapshot.stopped_by = record.stopped_by.load();
  return snapshot;
}

int Group::boxes() const {
  return shared_->memory().boxes;
}

int Group::box() const {
  return shared_->memory().box;
}

int Group::box_of(int rank) const {
  if (rank == kLauncher || rank == kLink) return box();
  int box = 0;
  while (box + 1 < boxes() && first_rank(box + 1) <= rank) ++box;
  return box;
}

int Group::first_rank(int box) const {
  return shared_->memory().first_ranks[static_cast<std::size_t>(box)];
}

int Group::ranks_of(int box) const {
  return first_rank(box + 1) - first_rank(box);
}

bool Group::is_here(int rank) const {
  return box_of(rank) == box();
}

std::string Group::box_text(int box) const {
  const auto name = shared_->memory().box_names[static_cast<std::size_t>(box)].read();
  return name.length == 0 ? str("box ", box) : str("box ", box, " (", name.view(), ')');
}

void Group::set_box_name(int box, std::string_view name) const {
  shared_->memory().box_names[static_cast<std::size_t>(box)].write(1, now_ns(), name);
}

void Group::note_worker(int rank, int wait_status, int stopped_by) const {
  ProcessRecord& record = shared_->record(rank);
  record.stopped_by.store(stopped_by);
  record.wait_status.store(wait_status - RankSnapshot::kRunning);
}

void Group::note_told() const {
  shared_->memory().told.store(1);
}

bool Group::told() const {
  return shared_->memory().told.load() != 0;
}

void Group::abort(std::string_view reason, int box) const {
  AbortState& state = shared_->memory().abort;
  const std::uint32_t ticket = state.tickets.fetch_add(1);
  if (ticket < AbortState::kReasons) {
    AbortState::Reason& slot = state.reasons[ticket];
    slot.length = static_cast<std::uint32_t>(reason.copy(slot.text.data(), slot.text.size()));
    state.boxes[ticket].store(box - kThisBox);
    std::uint32_t none = 0;
    state.aborted.compare_exchange_strong(none, ticket + 1, std::memory_order_seq_cst);
  }
  for (Doorbell& bell : shared_->main_bells) bell.ring();
  for (Doorbell& bell : shared_->collective_bells) bell.ring();
  if (shared_->link_bell) shared_->link_bell->ring();
}

bool Group::aborted() const {
  return shared_->aborted() != 0;
}

std::string Group::abort_reason() const {
  return shared_->abort_reason();
}

int Group::abort_box() const {
  const std::uint32_t slot = shared_->aborted();
  return slot == 0 ? kThisBox : shared_->memory().abort.boxes[slot - 1].load() + kThisBox;
}

void Group::request_stop() const {
  shared_->memory().stop_wanted.store(1, std::memory_order_seq_cst);
  for (Doorbell& bell : shared_->main_bells) bell.ring();
}

bool Group::stop_requested() const {
  return shared_->memory().stop_wanted.load(std::memory_order_seq_cst) != 0;
}

}  // namespace nvllm::ipc
