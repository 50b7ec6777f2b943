// WaitClock: a deadline that does not count time in which this process was stopped (SIGSTOP, a
// debugger, a suspended machine). A waiting process looks at the clock at least every kSlice; a gap
// of more than kStopped between two looks means that it did not run, and moves the deadline by as
// much.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/clock.h"

namespace nvllm::ipc {

class WaitClock {
 public:
  static constexpr Nanoseconds kSlice = std::chrono::milliseconds(200);
  static constexpr Nanoseconds kStopped = std::chrono::seconds(1);

  // Nanoseconds::max(): without limit.
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

  // As of the last look:
  bool expired() const { return last_ >= deadline_; }
  Nanoseconds elapsed() const { return Nanoseconds(last_ - start_); }
  // How long to sleep at most before looking again.
  Nanoseconds slice() const {
    return std::clamp(Nanoseconds(deadline_ - last_), Nanoseconds(0), kSlice);
  }

 private:
  std::int64_t start_;
  std::int64_t last_;
  std::int64_t deadline_;
};

}  // namespace nvllm::ipc
