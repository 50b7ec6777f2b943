#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/check.h"
#include "device/backend.h"
#include "device/cpu/graph.h"
#include "device/cpu/stream.h"

namespace nvllm::cpu {

// An event is a place in the work of the stream that recorded it last: nothing runs to reach it,
// and a wait that was enqueued before a new record keeps its place. Thread-safe.
class Event final : public nvllm::Event {
 public:
  explicit Event(bool timing) : timing_(timing) {}

  void record(nvllm::Stream& stream) override;
  bool reached() const override;
  // Throws the error of the work that led to the event, if it failed.
  void synchronize() const override;
  double seconds_since(const nvllm::Event& earlier) const override;

  // Stream::wait: makes later work of the stream wait for this event; during a capture, draws the
  // stream into it or adds an edge to it.
  void make_wait(Stream& stream) const;

 private:
  // Where the event was recorded last: in a stream's work, in a capture, or nowhere.
  struct Place {
    std::shared_ptr<Progress> progress;
    std::uint64_t position = 0;
    std::shared_ptr<std::atomic<std::int64_t>> reached_ns;  // with timing; 0: not reached
    std::shared_ptr<const CapturePoint> captured;
  };

  Place place() const;

  const bool timing_;
  mutable std::mutex mutex_;
  Place place_;
};

inline const Event& event(const nvllm::Event& event) {
  const auto* own = dynamic_cast<const Event*>(&event);
  NVLLM_CHECK(own != nullptr, "not an event of the CPU backend");
  return *own;
}

}  // namespace nvllm::cpu
