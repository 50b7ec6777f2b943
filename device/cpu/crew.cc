#include "device/cpu/crew.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/text.h"
#include "device/cpu/counter.h"
#include "device/topology.h"

namespace nvllm::cpu {
namespace {

// Longer than the gap between two kernels of a step, shorter than waking a thread twice.
constexpr Nanoseconds kSpin = std::chrono::microseconds(50);

// A thread's share is handed out in so many pieces, so that others can help who is slow.
constexpr std::int64_t kPiecesPerShare = 8;

}  // namespace

// A piece of work is a job: [0, count) in shares, one per thread, each in pieces. A thread takes the pieces
// of its own share, then those that are left of the others'. So the caller never waits for a thread to wake
// up: it waits only for those that have taken a piece.
//
// A thread may look at the job between two moments: it has raised its `inside` and has then seen the job
// open; it lowers `inside`. The caller closes the job when no piece is left, and then waits until all
// `inside` are low. Raising, looking, closing and waiting are sequentially consistent: either the thread
// sees the job closed, or the caller sees the thread inside.
class Crew::Impl {
 public:
  explicit Impl(int threads) : wanted_(threads) {}

  ~Impl() {
    stopping_.store(true);
    submitted_.advance(submitted_.value() + 1);
    for (std::thread& thread : threads_) thread.join();
  }

  int size() const {
    const int size = size_.load(std::memory_order_relaxed);
    return size > 0 ? size : size_now();
  }

  // Whether the crew is now the caller's: it must release() it.
  bool acquire() { return !busy_.exchange(true, std::memory_order_acquire); }
  void release() { busy_.store(false, std::memory_order_release); }

  // By who has acquired it.
  void run(std::int64_t count, std::int64_t grain, Call call);

 private:
  // One of the threads; the first is the caller.
  struct alignas(64) Member {
    std::atomic<bool> inside{false};
    // Of its share of the job in hand: the job's number (the upper 48 bits) and the pieces that are
    // taken. With an older number, none is.
    std::atomic<std::uint64_t> taken{0};
  };

  struct alignas(64) Job {
    std::atomic<std::uint64_t> open{0};  // its number; 0: closed
    // Written while it is closed and nobody is inside.
    Call call{};
    std::int64_t count = 0, grain = 1;
    std::int64_t grains = 0;  // the last one is longer where count / grain leaves a rest
    std::int64_t shares = 0, pieces = 0;  // `shares` shares of `pieces` pieces
  };

  int size_now() const {
    return wanted_ > 0 ? wanted_ : std::max(1, static_cast<int>(allowed_cores().size()));
  }
  void start();
  void serve(int member);
  void work(int member, std::uint64_t number);
  bool take(Member& member, std::uint64_t number, std::int64_t* piece);
  void run_piece(std::int64_t piece);

  const int wanted_;
  std::atomic<int> size_{0};  // 0: not started
  std::atomic<bool> busy_{false};
  Job job_;
  Counter submitted_{kSpin};  // the number of the last job
  std::atomic<bool> stopping_{false};
  std::atomic<bool> failed_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;  // guarded by error_mutex_
  std::vector<Member> members_;
  std::vector<std::thread> threads_;
};

void Crew::Impl::start() {
  const int size = size_now();
  members_ = std::vector<Member>(size);
  size_.store(size, std::memory_order_relaxed);
  for (int member = 1; member < size; ++member) {
    threads_.emplace_back([this, member] { serve(member); });
    pthread_setname_np(threads_.back().native_handle(), str("crew-", member).c_str());
  }
}

void Crew::Impl::serve(int member) {
  std::atomic<bool>& inside = members_[member].inside;
  std::uint64_t seen = 0;
  while (true) {
    submitted_.wait(seen + 1);
    if (stopping_.load()) return;
    seen = submitted_.value();
    inside.store(true, std::memory_order_seq_cst);
    if (const std::uint64_t number = job_.open.load(std::memory_order_seq_cst); number != 0) {
      if (member < job_.shares) work(member, number);
    }
    inside.store(false, std::memory_order_release);
  }
}

void Crew::Impl::run(std::int64_t count, std::int64_t grain, Call call) {
  if (members_.empty()) start();
  if (members_.size() == 1) return call(0, count);
  job_.call = call;
  job_.count = count;
  job_.grain = grain;
  job_.grains = count / grain;
  job_.shares = std::min(static_cast<std::int64_t>(members_.size()), job_.grains);
  job_.pieces = std::min(job_.grains / job_.shares, kPiecesPerShare);

  const std::uint64_t number = submitted_.value() + 1;
  job_.open.store(number, std::memory_order_seq_cst);
  submitted_.advance(number);
  work(0, number);
  job_.open.store(0, std::memory_order_seq_cst);
  for (Member& member : members_) {
    // Whoever is inside has a core, or has lost it for a while.
    for (int spins = 0; member.inside.load(std::memory_order_seq_cst); ++spins) {
      if (spins < 10'000) {
        cpu_relax();
      } else {
        sched_yield();
      }
    }
  }
  if (failed_.load()) {
    failed_.store(false);
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

void Crew::Impl::work(int member, std::uint64_t number) {
  for (std::int64_t i = 0; i < job_.shares; ++i) {
    const std::int64_t share = (member + i) % job_.shares;
    std::int64_t piece = 0;
    while (take(members_[share], number, &piece)) run_piece(share * job_.pieces + piece);
  }
}

bool Crew::Impl::take(Member& member, std::uint64_t number, std::int64_t* piece) {
  constexpr int kPieceBits = 16;
  static_assert(kPiecesPerShare < 1 << kPieceBits);
  const std::uint64_t none = number << kPieceBits;
  std::uint64_t taken = member.taken.load(std::memory_order_relaxed);
  while (true) {
    const std::uint64_t now = taken >> kPieceBits == number ? taken : none;
    *piece = static_cast<std::int64_t>(now - none);
    if (*piece == job_.pieces) return false;
    // Whoever waits for the piece's work waits for `inside`, so this needs no order.
    if (member.taken.compare_exchange_weak(taken, now + 1, std::memory_order_relaxed)) return true;
  }
}

void Crew::Impl::run_piece(std::int64_t piece) {
  if (failed_.load(std::memory_order_relaxed)) return;
  const std::int64_t pieces = job_.shares * job_.pieces;
  const std::int64_t begin = job_.grains * piece / pieces * job_.grain;
  const std::int64_t end =
      piece + 1 == pieces ? job_.count : job_.grains * (piece + 1) / pieces * job_.grain;
  try {
    job_.call(begin, end);
  } catch (...) {
    const std::lock_guard lock(error_mutex_);
    if (!failed_.exchange(true)) error_ = std::current_exception();
  }
}

Crew::Crew(int threads) : impl_(std::make_unique<Impl>(threads)) {}
Crew::~Crew() = default;

int Crew::size() const {
  return impl_->size();
}

void Crew::run(std::int64_t count, std::int64_t grain, Call call) {
  NVLLM_CHECK(grain >= 1, "grain ", grain);
  if (count <= 0) return;
  if (count / grain < 2 || !impl_->acquire()) return call(0, count);
  struct Release {
    Impl& impl;
    ~Release() { impl.release(); }
  } release{*impl_};
  impl_->run(count, grain, call);
}

}  // namespace nvllm::cpu
