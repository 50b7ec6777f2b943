#include "base/trace.h"

#include <algorithm>
#include <iterator>

namespace nvllm {

void Trace::add_span(std::string_view track, std::string_view name, std::int64_t begin_ns,
                     std::int64_t end_ns, std::uint64_t step) {
  const std::lock_guard lock(mutex_);
  if (events_.size() >= kMaxEvents) {
    ++dropped_;
    return;
  }
  events_.push_back({std::string(track), std::string(name), begin_ns, end_ns, step});
}

std::vector<TraceEvent> Trace::drain(std::size_t max) {
  const std::lock_guard lock(mutex_);
  const auto end = events_.begin() + static_cast<std::ptrdiff_t>(std::min(max, events_.size()));
  std::vector<TraceEvent> drained(std::make_move_iterator(events_.begin()),
                                  std::make_move_iterator(end));
  events_.erase(events_.begin(), end);
  return drained;
}

std::uint64_t Trace::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

}  // namespace nvllm
