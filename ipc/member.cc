// A process's side of its group: its record, its waits, and exchange(). The group itself is in
// group.cc.
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/thread.h"
#include "ipc/group.h"
#include "ipc/group_memory.h"

namespace nvllm::ipc {

struct Member::State {
  Group group;
  int rank;
  pid_t pid = getpid();
  bool crowded;  // more ranks than cores: spinning delays the rank being waited for
  std::uint64_t exchanges = 0;
  std::mutex last_words_mutex;

  const Group::Shared& shared() const { return *group.shared_; }
  ProcessRecord& record() const { return shared().record(rank); }
};

namespace {

// The kernel's struct sched_attr, which not every C library declares.
struct SchedulingAttributes {
  std::uint32_t size, policy;
  std::uint64_t flags;
  std::int32_t nice;
  std::uint32_t priority;
  std::uint64_t slice_ns, deadline_ns, period_ns;
};

// Makes the time slice of this thread, and of those that it will start, the shortest that there is.
// Their share of the cores stays the same, but Linux (from 6.12 on) runs a thread with a short
// slice soon after it is woken: on a machine that does other work, too, steps of several ranks take
// less than half the time.
void shorten_slice() {
  constexpr std::uint64_t kSlice = 100'000;
  SchedulingAttributes attributes{};
  if (::syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.slice_ns = kSlice;
  ::syscall(SYS_sched_setattr, 0, &attributes, 0);  // if it fails, nothing is lost but time
}

}  // namespace

Member Group::join(int rank) const {
  shared_->segment.check(kGroupKind);
  const bool link = rank == kLink && boxes() > 1;
  if (!link && (rank < kLauncher || rank >= size() || !is_here(rank))) {
    fail("rank ", rank, " cannot join a group of ", size(), " ranks");
  }
  ProcessRecord& record = shared_->record(rank);
  std::int32_t joined_pid = 0;
  if (!record.pid.compare_exchange_strong(joined_pid, getpid())) {
    fail(name_of_rank(rank), " has joined already, as pid ", joined_pid);
  }
  record.heartbeat_ns.store(now_ns());
  record.phase.store(static_cast<std::uint32_t>(Phase::starting));
  shorten_slice();
  const bool crowded = shared_->memory().cores < ranks_of(box()) + (boxes() > 1 ? 1 : 0);
  return Member(std::unique_ptr<Member::State>(
      new Member::State{Group(shared_), rank, getpid(), crowded, 0, {}}));
}

Member::Member(std::unique_ptr<State> state) : state_(std::move(state)) {}
Member::Member(Member&&) noexcept = default;

Member& Member::operator=(Member&& other) noexcept {
  Member(std::move(other)).state_.swap(state_);
  return *this;
}

Member::~Member() {
  // A child that inherited this object through fork() must not write its parent's record.
  if (state_ && state_->pid == getpid()) set_phase(Phase::ended);
}

int Member::rank() const {
  return state_->rank;
}
int Member::size() const {
  return state_->group.size();
}
const Group& Member::group() const {
  return state_->group;
}

void Member::set_phase(Phase phase) {
  state_->record().phase.store(static_cast<std::uint32_t>(phase));
}

void Member::set_step(std::uint64_t step) {
  state_->record().step.store(step, std::memory_order_release);
}

void Member::note_progress() {
  state_->record().progress.fetch_add(1, std::memory_order_release);
}

std::uint64_t Member::progress() const {
  return state_->record().progress.load(std::memory_order_acquire);
}

void Member::set_error_text(std::string_view text) {
  const std::lock_guard lock(state_->last_words_mutex);
  state_->record().error_text.write(1, now_ns(), text);
}

void Member::beat() {
  state_->record().heartbeat_ns.store(now_ns(), std::memory_order_release);
}

Member::ActivityScope::ActivityScope(Member& member, Activity activity, std::string_view text)
    : cell_(activity == Activity::call ? member.state_->record().call
                                       : member.state_->record().collective),
      before_(cell_.read()) {
  cell_.write(before_.number + 1, now_ns(), text);
}

Member::ActivityScope::~ActivityScope() {
  // An outer activity continues with its own number; the count itself never decreases once idle.
  const std::uint64_t number = before_.length != 0 ? before_.number : cell_.read().number;
  cell_.write(number, before_.since_ns, before_.view());
}

void Member::check_abort() const {
  state_->shared().check_abort();
}

bool Member::wait_until(Doorbell& bell, Condition ready, Nanoseconds limit, Nanoseconds spin,
                        int peer) {
  const Group::Shared& shared = state_->shared();
  shared.check_abort();
  if (ready()) return true;

  WaitClock clock(limit, now_ns());
  std::atomic<std::int32_t>& waits_for = state_->record().waits_for;
  if (peer != RankSnapshot::kNobody) waits_for.store(peer - RankSnapshot::kNobody);
  const auto found = [&] {
    if (peer != RankSnapshot::kNobody) waits_for.store(0);
    return true;
  };

  // Reading the clock costs as much as a few checks of the condition.
  constexpr int kSpins = 64;
  constexpr Nanoseconds kAlone = std::chrono::microseconds(20);  // after that, others may need this
                                                                 // core
  while (clock.elapsed() < spin && !clock.expired()) {
    for (int i = 0; i < kSpins; ++i) {
      cpu_relax();
      if (ready()) return found();
    }
    shared.check_abort();
    if (state_->crowded || clock.elapsed() > kAlone) sched_yield();
    clock.look(now_ns());
  }

  while (true) {
    Doorbell::Sleeper sleeper(bell);
    if (ready()) return found();
    shared.check_abort();
    clock.look(now_ns());
    if (clock.expired()) return false;
    sleeper.sleep(clock.slice());
  }
}

void Member::timed_out(int peer, const char* what) const {
  throw PeerTimeout(
      peer,
      str("waited ",
          format_duration(std::chrono::duration<double>(state_->group.step_timeout()).count()),
          " for ", what, " from ", state_->group.snapshot(peer).describe()));
}

std::vector<std::vector<std::byte>> Member::exchange(std::span<const std::byte> mine,
                                                     const char* what) {
  const Group::Shared& shared = state_->shared();
  NVLLM_CHECK(rank() != kLauncher, "exchange() is for ranks");
  NVLLM_CHECK_LE(mine.size(), kExchangeBytes);
  const std::uint64_t round = state_->exchanges++;
  ExchangeBox& box = shared.rank(rank()).exchange;
  ExchangeBox::Blob& blob = box.blobs[round % 2];
  blob.bytes = mine.size();
  std::copy(mine.begin(), mine.end(), blob.data.begin());
  box.published.store(round + 1, std::memory_order_seq_cst);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) main_bell(peer).ring();
  }

  std::vector<std::vector<std::byte>> all(static_cast<std::size_t>(size()));
  for (int peer = 0; peer < size(); ++peer) {
    const ExchangeBox& theirs = shared.rank(peer).exchange;
    wait(
        main_bell(rank()), [&] { return theirs.published.load(std::memory_order_seq_cst) > round; },
        peer, what);
    const ExchangeBox::Blob& received = theirs.blobs[round % 2];
    const auto bytes = std::min<std::size_t>(received.bytes, kExchangeBytes);
    all[static_cast<std::size_t>(peer)].assign(
        received.data.begin(), received.data.begin() + static_cast<std::ptrdiff_t>(bytes));
  }
  return all;
}

std::span<std::byte> Member::staging(int rank) const {
  const Group::Shared& shared = state_->shared();
  shared.check_rank(rank, 0);
  return shared.segment.payload().subspan(
      shared.layout.staging + static_cast<std::size_t>(rank) * shared.layout.staging_stride,
      shared.memory().staging_bytes);
}

std::span<Member::Flag> Member::flags(int rank) const {
  state_->shared().check_rank(rank, 0);
  return state_->shared().rank(rank).flags;
}

Doorbell& Member::collective_bell(int rank) const {
  state_->shared().check_rank(rank, kLauncher);
  return state_->group.shared_->bell(state_->group.shared_->collective_bells, rank);
}

Doorbell& Member::main_bell(int rank) const {
  state_->shared().check_rank(rank, kLauncher);
  return state_->group.shared_->bell(state_->group.shared_->main_bells, rank);
}

std::span<std::byte> Member::channel_memory() const {
  const Group::Shared& shared = state_->shared();
  return shared.segment.payload().subspan(shared.layout.channels, ChannelsLayout(size()).bytes);
}

// --- Heartbeat ---

Heartbeat::Heartbeat(Member& member)
    : thread_(start_thread("of the heartbeat", [this, &member] { run(member); })) {}

Heartbeat::~Heartbeat() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stop_wanted_.notify_one();
  thread_.join();
}

Nanoseconds Heartbeat::interval(Nanoseconds step_timeout) {
  return std::clamp<Nanoseconds>(step_timeout / 8, std::chrono::milliseconds(20),
                                 std::chrono::milliseconds(500));
}

void Heartbeat::run(Member& member) {
  const Nanoseconds pause = interval(member.group().step_timeout());
  std::unique_lock lock(mutex_);
  while (!stop_) {
    member.beat();
    // Sleepers check their deadline after a slice of the wall clock (doorbell.cc). If that clock
    // was set back, this makes them check now.
    member.main_bell(member.rank()).ring();
    member.collective_bell(member.rank()).ring();
    stop_wanted_.wait_for(lock, pause, [this] { return stop_; });
  }
}

}  // namespace nvllm::ipc
