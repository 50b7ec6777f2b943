#include "runtime/step_timer.h"

#include <utility>

#include "base/clock.h"

namespace nvllm::runtime {

StepTimer::StepTimer(Trace* trace, Backend& backend, Stream& stream, int steps) : trace_(trace) {
  if (trace_ == nullptr) return;
  for (int i = 0; i < steps; ++i) {
    steps_.push_back({backend.create_event(true), backend.create_event(true)});
  }
  anchor_ = backend.create_event(true);
  anchor_->record(stream);
  stream.synchronize();
  anchor_ns_ = now_ns();
}

void StepTimer::begin(std::uint64_t step, Stream& stream) {
  if (trace_ == nullptr) return;
  collect();
  if (count_ == steps_.size()) {  // nobody has waited for so long: the oldest goes unseen
    oldest_ = (oldest_ + 1) % steps_.size();
    --count_;
  }
  Timed& timed = steps_[(oldest_ + count_) % steps_.size()];
  ++count_;
  timed.step = step;
  timed.begin->record(stream);
}

void StepTimer::end(Stream& stream) {
  if (trace_ != nullptr) steps_[(oldest_ + count_ - 1) % steps_.size()].end->record(stream);
}

void StepTimer::collect() {
  for (; count_ > 0 && steps_[oldest_].end->reached(); --count_) {
    Timed& timed = steps_[oldest_];
    const auto at = [&](const Event& event) {
      return anchor_ns_ + static_cast<std::int64_t>(event.seconds_since(*anchor_) * 1e9);
    };
    const std::int64_t begin = at(*timed.begin), end = at(*timed.end);
    trace_->add_span("device", "step", begin, end, timed.step);
    // Intervals are single floats: short ones are exact. The old anchor's event serves this place now.
    anchor_ns_ = end;
    std::swap(anchor_, timed.end);
    oldest_ = (oldest_ + 1) % steps_.size();
  }
}

}  // namespace nvllm::runtime
