// StepTimer: the device's time for each step, for a trace. Without a trace it does nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/trace.h"
#include "device/backend.h"

namespace nvllm::runtime {

// Used by one thread, with one stream.
class StepTimer {
 public:
  // steps: that may be under way, and one more. Waits for the stream, if there is a trace.
  StepTimer(Trace* trace, Backend& backend, Stream& stream, int steps);

  // Around the work of a step; that of the step before has ended begin()s.
  void begin(std::uint64_t step, Stream& stream);
  void end(Stream& stream);

  // Enters the steps that the device has run since into the trace.
  void collect();

 private:
  struct Timed {
    std::unique_ptr<Event> begin, end;
    std::uint64_t step = 0;
  };

  Trace* trace_;
  std::vector<Timed> steps_;
  std::size_t oldest_ = 0, count_ = 0;
  // The clocks' common point: an event that was reached at this time.
  std::unique_ptr<Event> anchor_;
  std::int64_t anchor_ns_ = 0;
};

}  // namespace nvllm::runtime
