// Counter: a monotonic number on which threads can wait. All waits of the CPU backend use one.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <mutex>

#include "base/clock.h"

namespace nvllm::cpu {

// One thread at a time advances it; any number may wait. A waiter spins briefly, then sleeps.
//
// No wake-up is lost: a waiter stores wake_at_ and then reads value_, the advancing thread stores
// value_ and then reads wake_at_, all sequentially consistent, so at least one of them sees the
// other's store. If the advancing thread does, it takes the mutex, which the waiter holds from
// before its store until it sleeps, and then notifies. It does so only when a waiter's target is
// reached, not at each step on the way.
class alignas(64) Counter {
 public:
  static constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();

  // `spin`: how long waiters spin before they sleep.
  explicit Counter(Nanoseconds spin) : spin_ns_(spin.count()) {}

  // The writes that the advancing thread made before it advanced to this value are visible.
  std::uint64_t value() const { return value_.load(std::memory_order_acquire); }

  void advance(std::uint64_t to) {
    value_.store(to, std::memory_order_seq_cst);
    if (wake_at_.load(std::memory_order_seq_cst) <= to) [[unlikely]]
      wake();
  }

  // Returns once value() >= target, or false if now_ns() reaches the deadline before that.
  bool wait(std::uint64_t target, std::int64_t deadline_ns = kForever) {
    return value() >= target || wait_slowly(target, deadline_ns);
  }

 private:
  static constexpr std::uint64_t kNobody = std::numeric_limits<std::uint64_t>::max();

  bool wait_slowly(std::uint64_t target, std::int64_t deadline_ns);
  void wake();

  std::atomic<std::uint64_t> value_{0};
  std::atomic<std::uint64_t> wake_at_{kNobody};  // the smallest target of the sleeping waiters
  const std::int64_t spin_ns_;
  std::mutex mutex_;
  std::condition_variable advanced_;
};

}  // namespace nvllm::cpu
