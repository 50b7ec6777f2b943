#include "base/trace.h"

#include <algorithm>
#include <iterator>

namespace nvllm {

void Trace::add(std::string_view track, std::string_view name, std::int64_t begin_ns,
                std::int64_t end_ns, std::uint64_t step) {
  const std::lock_guard lock(mutex_);
  if (events_.size() >= kMostEvents) {
    ++dropped_;
    return;
  }
  events_.push_back({std::string(track), std::string(name), begin_ns, end_ns, step});
}

std::vector<TraceEvent> Trace::take(std::size_t most) {
  const std::lock_guard lock(mutex_);
  const auto end = events_.begin() + static_cast<std::ptrdiff_t>(std::min(most, events_.size()));
  std::vector<TraceEvent> taken(std::make_move_iterator(events_.begin()),
                                std::make_move_iterator(end));
  events_.erase(events_.begin(), end);
  return taken;
}

std::uint64_t Trace::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

}  // namespace nvllm
