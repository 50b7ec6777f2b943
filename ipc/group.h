// Group: the shared memory of the processes of one launch. The launcher creates it, then forks;
// each process joins as a Member. It contains one record per rank (whether it is alive, and its
// activity), the rings, the staging memory of CPU collectives, and an abort flag that ends every
// wait.
//
//   Group group = Group::create({.size = 2});     // launcher, before fork()
//   if (fork() == 0) { Member me = group.join(rank); ... }
//   Member me = group.join(kLauncher);            // the launcher itself
//
// Nothing remains after the processes end: the names of the segment and the semaphores are removed
// before create() returns, and the processes inherit the mappings through fork().
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "ipc/doorbell.h"
#include "ipc/text_cell.h"

namespace nvllm::ipc {

inline constexpr int kMaxRanks = 8;
inline constexpr int kLauncher = -1;  // the launcher's rank number
// The rank number of the process that copies memory to and from other boxes (mirror.h), if the
// group spans several.
inline constexpr int kLink = kMaxRanks;

struct GroupOptions {
  int size = 1;                                         // ranks, 1 to kMaxRanks
  Nanoseconds step_timeout = std::chrono::seconds(60);  // of every wait for a peer
  std::size_t staging_bytes = std::size_t{2} << 20;     // of each rank, for collectives on the CPU
  // A group over several boxes (machines): the number of ranks on each, in rank order. Empty: all
  // are on this one.
  std::vector<int> box_ranks = {};
  int box = 0;  // index of this box
};

// The group was aborted (for instance because a rank died) while this process waited. The message
// gives the reason.
class GroupAborted : public Error {
 public:
  using Error::Error;
};

// A peer did not respond in time. The message names it, its pid, its last step and its activity.
class PeerTimeout : public Error {
 public:
  PeerTimeout(int peer, const std::string& message) : Error(message), peer_(peer) {}
  int peer() const { return peer_; }

 private:
  int peer_;
};

enum class Phase : std::uint32_t { absent, starting, ready, stopping, ended };
const char* name_of(Phase phase);

// One activity of a process: a call (of its main thread) or a collective (of the thread that runs
// its stream). Others can read it at any time, even after the process has died.
struct ActivitySnapshot {
  std::string text;           // "all_reduce 4096 float32"; empty: idle
  std::uint64_t number = 0;   // number of such activities started so far
  std::int64_t since_ns = 0;  // when this one began
};

using ActivityCell = TextCell<112>;

// A rank's record, as read by the launcher or a peer.
struct RankSnapshot {
  int rank = 0;
  int pid = 0;  // 0: has not joined yet
  Phase phase = Phase::absent;
  std::uint64_t step = 0;
  std::uint64_t progress = 0;     // number of progress reports within steps
  std::int64_t heartbeat_ns = 0;  // time of its last heartbeat (now_ns())
  ActivitySnapshot call;
  ActivitySnapshot collective;
  int waits_for = kNobody;  // the rank it is waiting for, or waited for when it gave up
  std::string error_text;   // the error with which it ended, if it could store it
  // What its launcher has observed, for the launchers of other boxes: the status of waitpid(), or
  // one of these; and the signal that has stopped it, or 0.
  static constexpr int kRunning = -1, kEndedSomehow = -2;
  int wait_status = kRunning;
  int stopped_by = 0;

  static constexpr int kNobody = -2;
  std::string describe()
      const;  // "rank 1 (pid 4711), step 12, in all_reduce 4096 float32 #40 for 1.20 s"
};

class Member;

class Group {
 public:
  // Throws an Error that includes the fix if /dev/shm is full or not writable, or if a size is out
  // of range.
  static Group create(const GroupOptions& options);

  Group(Group&&) noexcept;
  Group& operator=(Group&&) noexcept;
  ~Group();

  // Makes this process the member with that rank, once per process and rank. Checks that the
  // segment is complete and of this version.
  Member join(int rank) const;

  int size() const;
  Nanoseconds step_timeout() const;
  RankSnapshot snapshot(int rank) const;

  // The ranks of each box. Each box has a segment with the records, rings and staging memory of all
  // ranks; the mirror copies what ranks of other boxes write there.
  int boxes() const;
  int box() const;
  int box_of(int rank) const;
  int first_rank(int box) const;
  int ranks_of(int box) const;
  bool is_here(int rank) const;  // also true for the launcher and the link
  // "box 1 (node17)"; without the name before set_box_name() is called.
  std::string box_text(int box) const;
  void set_box_name(int box, std::string_view name) const;

  // Ends every wait in every process with GroupAborted(reason), now and later. Only the first
  // reason is stored. May be called by any member and thread. box: the box where the reason
  // originated, if another one.
  static constexpr int kThisBox = -1;
  void abort(std::string_view reason, int box = kThisBox) const;
  bool aborted() const;
  std::string abort_reason() const;
  int abort_box() const;  // kThisBox, or the box where the abort originated

  // For the launcher: records what it has observed of a worker, and that it will report nothing
  // more about the group's end, so that the link may disconnect.
  void note_worker(int rank, int wait_status, int stopped_by) const;
  void note_told() const;
  bool told() const;

  // The launcher's request for an orderly shutdown. It interrupts only waits that check it, such as
  // RequestServer's (rpc.h).
  void request_stop() const;
  bool stop_requested() const;

  // Size of a group in /dev/shm.
  static std::size_t bytes_needed(const GroupOptions& options);

 private:
  friend class Member;
  friend class GroupMirror;
  struct Shared;
  explicit Group(std::shared_ptr<Shared> shared);
  std::shared_ptr<Shared> shared_;
};

// One process of the group. Move-only; thread-safe unless stated otherwise.
class Member {
 public:
  Member(Member&&) noexcept;
  Member& operator=(Member&&) noexcept;
  ~Member();  // marks the record as ended

  int rank() const;  // kLauncher for the launcher
  int size() const;
  const Group& group() const;

  void set_phase(Phase phase);
  void set_step(std::uint64_t step);
  // Reports progress within a long step, which restarts the step timeout of all processes that wait
  // for this one. May be called by any thread.
  void note_progress();
  std::uint64_t progress() const;  // of this member
  void set_error_text(std::string_view text);
  void beat();  // updates the heartbeat; a Heartbeat calls it periodically

  // Records the activity of this process for the lifetime of the object, then restores the previous
  // one. Each kind of activity belongs to one thread.
  enum class Activity { call, collective };
  class ActivityScope {
   public:
    ActivityScope(Member& member, Activity activity, std::string_view text);
    ~ActivityScope();
    ActivityScope(const ActivityScope&) = delete;
    ActivityScope& operator=(const ActivityScope&) = delete;

   private:
    ActivityCell& cell_;
    ActivityCell::Value before_;
  };

  // Waits until ready() is true: spins for `spin`, then sleeps on the doorbell. ready() must become
  // true only by a sequentially consistent store that is followed by a ring of that bell
  // (doorbell.h). Throws GroupAborted or, when the group's step timeout has passed, PeerTimeout,
  // which names `peer` and `what` was expected of it. Time during which this process itself was
  // stopped does not count.
  template <typename Ready>
  void wait(Doorbell& bell, Ready ready, int peer, const char* what, Nanoseconds spin = kSpin) {
    if (!wait_until(bell, Condition(ready), group().step_timeout(), spin, peer))
      timed_out(peer, what);
  }
  // Waits without a time limit, as an idle worker does for its next call.
  template <typename Ready>
  void wait_idle(Doorbell& bell, Ready ready, Nanoseconds spin = kSpin) {
    wait_until(bell, Condition(ready), Nanoseconds::max(), spin, RankSnapshot::kNobody);
  }
  // Waits with a limit that is not an error: returns false when it has passed.
  template <typename Ready>
  bool wait_for(Doorbell& bell, Ready ready, Nanoseconds limit, Nanoseconds spin = kSpin) {
    return wait_until(bell, Condition(ready), limit, spin, RankSnapshot::kNobody);
  }
  // Throws GroupAborted if the group was aborted.
  void check_abort() const;

  static constexpr Nanoseconds kSpin = std::chrono::microseconds(50);

  // Exchanges a blob (up to kExchangeBytes) of every rank; returns all ranks' blobs, in rank order.
  // A collective call of all ranks (not the launcher), for startup: NCCL ids, CUDA IPC handles,
  // errors.
  static constexpr std::size_t kExchangeBytes = 1024;
  std::vector<std::vector<std::byte>> exchange(std::span<const std::byte> mine, const char* what);

  // The memory through which CPU collectives exchange data: staging(r) is rank r's, the same bytes
  // in every process; flags(r) are counters that rank r publishes, initially zero, one cache line
  // each.
  std::span<std::byte> staging(int rank) const;
  struct alignas(64) Flag {
    std::atomic<std::uint64_t> value;
  };
  static constexpr int kFlags = 8;
  std::span<Flag> flags(int rank) const;
  // The doorbell on which rank r's collective thread sleeps. For a rank of another box both bells
  // are the link's, which then checks what there is to copy.
  Doorbell& collective_bell(int rank) const;
  // The doorbell on which the main thread of a rank, or of the launcher, sleeps in rings and
  // exchange().
  Doorbell& main_bell(int rank) const;
  // The memory of the group's rings, initially zero (ring_layout.h).
  std::span<std::byte> channel_memory() const;

 private:
  friend class Group;
  struct State;

  // A type-erased view of the caller's ready(), so that the waiting code is compiled once.
  class Condition {
   public:
    template <typename Ready>
    explicit Condition(Ready& ready)
        : object_(&ready),
          call_([](void* object) { return static_cast<bool>((*static_cast<Ready*>(object))()); }) {}
    bool operator()() const { return call_(object_); }

   private:
    void* object_;
    bool (*call_)(void*);
  };

  explicit Member(std::unique_ptr<State> state);
  // False when the limit has passed.
  bool wait_until(Doorbell& bell, Condition ready, Nanoseconds limit, Nanoseconds spin, int peer);
  [[noreturn]] void timed_out(int peer, const char* what) const;
  std::unique_ptr<State> state_;
};

// Heartbeat: a thread that updates a member's heartbeat for as long as the object exists. It also
// wakes the member's own sleepers periodically, so that they check their deadlines.
class Heartbeat {
 public:
  // Create it after fork(), since threads are not inherited. The member must outlive it, and must
  // not be moved.
  explicit Heartbeat(Member& member);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // An eighth of the step timeout, but between 20 and 500 ms.
  static Nanoseconds interval(Nanoseconds step_timeout);

 private:
  void run(Member& member);

  std::mutex mutex_;
  std::condition_variable stop_wanted_;
  bool stop_ = false;  // guarded by mutex_
  std::thread thread_;
};

// WaitClock: a deadline that excludes time during which this process was stopped (SIGSTOP, a
// debugger, a suspended machine). A waiting process checks the clock at least every kSlice; a gap
// of more than kStopped between two checks means that it did not run, and moves the deadline by as
// much.
class WaitClock {
 public:
  static constexpr Nanoseconds kSlice = std::chrono::milliseconds(200);
  static constexpr Nanoseconds kStopped = std::chrono::seconds(1);

  // Nanoseconds::max(): no limit.
  WaitClock(Nanoseconds limit, std::int64_t now)
      : start_(now),
        last_(now),
        deadline_(limit >= Nanoseconds(std::numeric_limits<std::int64_t>::max() - now)
                      ? std::numeric_limits<std::int64_t>::max()
                      : now + limit.count()) {}

  void look(std::int64_t now) {
    const std::int64_t gap = now - last_;
    last_ = now;
    if (gap <= kStopped.count()) return;
    start_ += gap;
    if (deadline_ < std::numeric_limits<std::int64_t>::max() - gap) deadline_ += gap;
  }

  // As of the last check:
  bool expired() const { return last_ >= deadline_; }
  Nanoseconds elapsed() const { return Nanoseconds(last_ - start_); }
  // Maximum sleep before the next check.
  Nanoseconds slice() const {
    return std::clamp(Nanoseconds(deadline_ - last_), Nanoseconds(0), kSlice);
  }

 private:
  std::int64_t start_;
  std::int64_t last_;
  std::int64_t deadline_;
};

}  // namespace nvllm::ipc
