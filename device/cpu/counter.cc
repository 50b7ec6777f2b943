#include "device/cpu/counter.h"

#include <chrono>

namespace nvllm::cpu {

bool Counter::wait_slowly(std::uint64_t target, std::int64_t deadline_ns) {
  const std::int64_t spin_until = spin_ns_ > 0 ? now_ns() + spin_ns_ : 0;
  while (spin_ns_ > 0 && now_ns() < spin_until) {
    for (int i = 0; i < 16; ++i) {
      if (value() >= target) return true;
      cpu_relax();
    }
  }

  std::unique_lock lock(mutex_);
  while (true) {
    // Repeated in each round, since wake() resets it.
    if (wake_at_.load(std::memory_order_relaxed) > target) {
      wake_at_.store(target, std::memory_order_seq_cst);
    }
    if (value_.load(std::memory_order_seq_cst) >= target) return true;
    if (deadline_ns == kForever) {
      advanced_.wait(lock);
    } else {
      const auto deadline = std::chrono::steady_clock::time_point(Nanoseconds(deadline_ns));
      if (now_ns() >= deadline_ns) return false;
      advanced_.wait_until(lock, deadline);
    }
  }
}

void Counter::wake() {
  const std::lock_guard lock(mutex_);
  wake_at_.store(kNobody, std::memory_order_seq_cst);
  advanced_.notify_all();
}

}  // namespace nvllm::cpu
