#include "device/cpu/thread_pool.h"

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
#include "base/thread.h"
#include "device/cpu/counter.h"
#include "device/topology.h"

namespace nvllm::cpu {
namespace {

// The number of pieces of a thread's share, so that other threads can take over from a slow one.
constexpr std::int64_t kPiecesPerShare = 8;

}  // namespace

// A call of run() is a job: [0, count) in shares, one per thread, each cut into pieces. A thread
// takes the pieces of its own share, then the remaining ones of the others. So the caller never
// waits for a thread to wake up: it only waits for threads that have taken a piece to report it as
// finished.
//
// A dispatch causes few transfers between caches: everything that a thread needs to know of a job
// is in one cache line, the one on which it waits; the piece counter of its share, and its report,
// are in lines of their own.
//
// A thread may read the job while the next one is being written, or arrive when it is done. It
// copies the job and then re-reads its number: if that is unchanged, the copy is consistent,
// because the number is reset before anything else changes. And as long as it can take a piece of
// that number, the job is not done.
class ThreadPool::Impl {
 public:
  Impl(int threads, Nanoseconds spin) : wanted_(threads), spin_(spin) {}

  ~Impl() {
    stopping_.store(true);
    submitted_.advance(number_ + 1);
    job_.number.store(number_ + 1, std::memory_order_seq_cst);
    for (std::thread& thread : threads_) thread.join();
  }

  int size() const {
    const int size = size_.load(std::memory_order_relaxed);
    return size > 0 ? size : size_now();
  }

  // Whether the caller now owns the pool: it must release() it.
  bool acquire() { return !busy_.exchange(true, std::memory_order_acquire); }
  void release() { busy_.store(false, std::memory_order_release); }

  // Called by the owner.
  void run(std::int64_t count, std::int64_t grain, Call call);

 private:
  // An atomic count of pieces of a job: the job's number (the upper 48 bits) and the count. With
  // another job's number, the count is zero.
  static constexpr int kPieceBits = 16;
  using Pieces = std::atomic<std::uint64_t>;
  static std::int64_t pieces_of(std::uint64_t value, std::uint64_t number) {
    constexpr std::uint64_t kMask = (1 << kPieceBits) - 1;
    return value >> kPieceBits == number ? static_cast<std::int64_t>(value & kMask) : 0;
  }

  // One of the threads; the first is the caller.
  struct Member {
    alignas(64) Pieces taken{0};     // pieces of its share taken by any thread
    alignas(64) Pieces finished{0};  // pieces of any share that it has finished
  };

  // A copy of a job.
  struct Work {
    std::uint64_t number;
    Call call;
    std::int64_t count, grain;
    std::int64_t shares, pieces;                           // `shares` shares of `pieces` pieces
    std::int64_t grains() const { return count / grain; }  // the last one includes the remainder
  };

  struct alignas(64) Job {
    std::atomic<std::uint64_t> number{0};  // 0: being written
    std::atomic<decltype(Call::function)> function{nullptr};
    std::atomic<const void*> callable{nullptr};
    std::atomic<std::int64_t> count{0}, grain{1};
    std::atomic<std::int32_t> shares{0}, pieces{0};

    void write(const Work& work);
    // Returns whether a consistent copy was read.
    bool read(Work* work) const;
  };

  int size_now() const {
    return wanted_ > 0 ? wanted_ : std::max(1, static_cast<int>(allowed_cores().size()));
  }
  void start();
  void serve(int member);
  void wait_beyond(std::uint64_t seen);
  void work(int member, const Work& work);
  static bool take(Member& member, const Work& work, std::int64_t* piece);
  void run_piece(const Work& work, std::int64_t piece);
  bool all_finished(const Work& work) const;

  const int wanted_;
  const Nanoseconds spin_;
  std::atomic<int> size_{0};  // 0: not started
  std::atomic<bool> busy_{false};
  std::uint64_t number_ = 0;  // of the last job; only used by the owner
  Job job_;
  Counter submitted_{Nanoseconds(0)};  // number of the last job, for sleeping threads
  std::atomic<bool> stopping_{false};
  std::atomic<bool> failed_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;  // guarded by error_mutex_
  std::vector<Member> members_;
  std::vector<std::thread> threads_;
};

// A thread that sees any value stored here, with release, sees the number 0 or a later one from
// then on.
void ThreadPool::Impl::Job::write(const Work& work) {
  number.store(0, std::memory_order_relaxed);
  function.store(work.call.function, std::memory_order_release);
  callable.store(work.call.callable, std::memory_order_release);
  count.store(work.count, std::memory_order_release);
  grain.store(work.grain, std::memory_order_release);
  shares.store(static_cast<std::int32_t>(work.shares), std::memory_order_release);
  pieces.store(static_cast<std::int32_t>(work.pieces), std::memory_order_release);
  number.store(work.number, std::memory_order_release);
}

bool ThreadPool::Impl::Job::read(Work* work) const {
  work->number = number.load(std::memory_order_acquire);
  work->call = {function.load(std::memory_order_acquire), callable.load(std::memory_order_acquire)};
  work->count = count.load(std::memory_order_acquire);
  work->grain = grain.load(std::memory_order_acquire);
  work->shares = shares.load(std::memory_order_acquire);
  work->pieces = pieces.load(std::memory_order_acquire);
  return work->number != 0 && number.load(std::memory_order_relaxed) == work->number;
}

void ThreadPool::Impl::start() {
  const int size = size_now();
  members_ = std::vector<Member>(size);
  size_.store(size, std::memory_order_relaxed);
  for (int member = 1; member < size; ++member) {
    threads_.push_back(start_thread("for kernels", [this, member] { serve(member); }));
    pthread_setname_np(threads_.back().native_handle(), str("pool-", member).c_str());
  }
}

void ThreadPool::Impl::serve(int member) {
  std::uint64_t seen = 0;
  while (true) {
    wait_beyond(seen);
    if (stopping_.load()) return;
    Work work;
    if (!job_.read(&work)) continue;
    seen = work.number;
    if (member < work.shares) this->work(member, work);
  }
}

// Waits for a job with a number above `seen`.
void ThreadPool::Impl::wait_beyond(std::uint64_t seen) {
  const std::int64_t spin_until = now_ns() + spin_.count();
  do {
    for (int i = 0; i < 32; ++i) {
      if (job_.number.load(std::memory_order_acquire) > seen) return;
      cpu_relax();
    }
  } while (now_ns() < spin_until);
  submitted_.wait(seen + 1);
}

void ThreadPool::Impl::run(std::int64_t count, std::int64_t grain, Call call) {
  if (members_.empty()) start();
  if (members_.size() == 1) return call(0, count);
  const std::int64_t grains = count / grain;
  const std::int64_t shares = std::min(static_cast<std::int64_t>(members_.size()), grains);
  const Work work = {.number = ++number_,
                     .call = call,
                     .count = count,
                     .grain = grain,
                     .shares = shares,
                     .pieces = std::min(grains / shares, kPiecesPerShare)};
  job_.write(work);
  submitted_.advance(work.number);
  this->work(0, work);
  // Threads that have taken a piece are running, or have been preempted.
  for (int spins = 0; !all_finished(work); ++spins) {
    if (spins < 10'000) {
      cpu_relax();
    } else {
      sched_yield();
    }
  }
  if (failed_.load()) {
    failed_.store(false);
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

bool ThreadPool::Impl::all_finished(const Work& work) const {
  std::int64_t finished = 0;
  for (const Member& member : members_) {
    finished += pieces_of(member.finished.load(std::memory_order_acquire), work.number);
  }
  return finished == work.shares * work.pieces;
}

void ThreadPool::Impl::work(int member, const Work& work) {
  const std::uint64_t none = work.number << kPieceBits;
  std::uint64_t finished = 0;
  for (std::int64_t i = 0; i < work.shares; ++i) {
    const std::int64_t share = member + i < work.shares ? member + i : member + i - work.shares;
    std::int64_t piece = 0;
    const std::uint64_t before = finished;
    while (take(members_[share], work, &piece)) {
      run_piece(work, share * work.pieces + piece);
      ++finished;
    }
    if (finished != before) {
      members_[member].finished.store(none + finished, std::memory_order_release);
    }
  }
}

bool ThreadPool::Impl::take(Member& member, const Work& work, std::int64_t* piece) {
  static_assert(kPiecesPerShare < 1 << kPieceBits);
  const std::uint64_t none = work.number << kPieceBits;
  std::uint64_t taken = member.taken.load(std::memory_order_relaxed);
  while (true) {
    if (taken >> kPieceBits > work.number) return false;
    *piece = pieces_of(taken, work.number);
    if (*piece == work.pieces) return false;
    // No data is published through this, so it needs no ordering.
    if (member.taken.compare_exchange_weak(taken, none + *piece + 1, std::memory_order_relaxed)) {
      return true;
    }
  }
}

void ThreadPool::Impl::run_piece(const Work& work, std::int64_t piece) {
  if (failed_.load(std::memory_order_relaxed)) return;
  const std::int64_t pieces = work.shares * work.pieces, grains = work.grains();
  const std::int64_t begin = grains * piece / pieces * work.grain;
  const std::int64_t end =
      piece + 1 == pieces ? work.count : grains * (piece + 1) / pieces * work.grain;
  try {
    work.call(begin, end);
  } catch (...) {
    const std::lock_guard lock(error_mutex_);
    if (!failed_.exchange(true)) error_ = std::current_exception();
  }
}

ThreadPool::ThreadPool(int threads, Nanoseconds spin)
    : impl_(std::make_unique<Impl>(threads, spin)) {}
ThreadPool::~ThreadPool() = default;

int ThreadPool::size() const {
  return impl_->size();
}

void ThreadPool::run(std::int64_t count, std::int64_t grain, Call call) {
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
