// Trace records a process's activity as spans on named tracks. The traces of all processes form a
// timeline for Perfetto or chrome://tracing. Recording a span costs two clock readings and a few
// stores; without a trace (nullptr) it costs nothing.
//
//   { const Trace::Span span(trace, "host", "schedule"); ... }
//   trace->add_span("gpu", "forward", begin_ns, end_ns);
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace nvllm {

struct TraceEvent {
  std::string track;  // "host", "device", "rings"
  std::string name;
  std::int64_t begin_ns = 0;  // now_ns()
  std::int64_t end_ns = 0;
  std::uint64_t step = 0;  // 0: no step

  template <class Archive>
  void serialize(Archive& archive) {
    archive(track, name, begin_ns, end_ns, step);
  }
};

// One process's events.
struct ProcessTrace {
  std::string name;  // "launcher", "rank 0"
  std::vector<TraceEvent> events;
  std::uint64_t dropped = 0;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(name, events, dropped);
  }
};

// Thread-safe. Keeps the first kMaxEvents (about 100 MB) until drain() removes some; counts those
// it drops.
class Trace {
 public:
  static constexpr std::size_t kMaxEvents = std::size_t{1} << 20;

  void add_span(std::string_view track, std::string_view name, std::int64_t begin_ns,
                std::int64_t end_ns, std::uint64_t step = 0);
  // Removes and returns the oldest events, at most `max`, in the order in which they were added.
  std::vector<TraceEvent> drain(std::size_t max = std::numeric_limits<std::size_t>::max());
  std::uint64_t dropped() const;  // so far

  class Span {
   public:
    Span(Trace* trace, const char* track, const char* name, std::uint64_t step = 0)
        : trace_(trace), track_(track), name_(name), step_(step) {
      if (trace_ != nullptr) begin_ns_ = now_ns();
    }
    ~Span() {
      if (trace_ != nullptr) trace_->add_span(track_, name_, begin_ns_, now_ns(), step_);
    }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    Trace* trace_;
    const char* track_;
    const char* name_;
    std::uint64_t step_;
    std::int64_t begin_ns_ = 0;
  };

 private:
  mutable std::mutex mutex_;
  std::deque<TraceEvent> events_;  // guarded by mutex_; a deque, so that growth moves no events
  std::uint64_t dropped_ = 0;      // guarded by mutex_
};

}  // namespace nvllm
