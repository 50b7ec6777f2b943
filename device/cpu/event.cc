#include "device/cpu/event.h"

#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace nvllm::cpu {
namespace {

// What a stream runs to wait for another one.
struct WaitFor {
  std::shared_ptr<Progress> progress;
  std::uint64_t position;

  void operator()() const {
    progress->done.wait(position);
    progress->rethrow(position);
  }
};

[[noreturn]] void fail_captured() {
  fail(
      "the event was recorded in the capture of a graph, which runs elsewhere; record it in a "
      "stream");
}

}  // namespace

void Event::record(nvllm::Stream& nvllm_stream) {
  Stream& stream = cpu::stream(nvllm_stream);
  Place place;
  if (stream.capture() != nullptr) {
    place.captured = stream.capture()->point(stream.branch());
  } else {
    if (timing_) {
      place.reached_ns = std::make_shared<std::atomic<std::int64_t>>(0);
      stream.submit([reached_ns = place.reached_ns] { reached_ns->store(now_ns()); });
    }
    place.progress = stream.progress();
    place.position = stream.enqueued();
  }
  const std::lock_guard lock(mutex_);
  place_ = std::move(place);
}

bool Event::reached() const {
  const Place place = this->place();
  if (place.captured != nullptr) fail_captured();
  return place.progress == nullptr || place.progress->done.value() >= place.position;
}

void Event::synchronize() const {
  const Place place = this->place();
  if (place.captured != nullptr) fail_captured();
  if (place.progress == nullptr) return;
  place.progress->done.wait(place.position);
  place.progress->rethrow(place.position);
}

double Event::seconds_since(const nvllm::Event& earlier) const {
  const Place end = place();
  const Place start = cpu::event(earlier).place();
  if (end.reached_ns == nullptr || start.reached_ns == nullptr) {
    fail("seconds_since() needs two recorded events that were made with timing");
  }
  const std::int64_t end_ns = end.reached_ns->load();
  const std::int64_t start_ns = start.reached_ns->load();
  if (end_ns == 0 || start_ns == 0) fail("seconds_since() of an event that is not reached yet");
  return static_cast<double>(end_ns - start_ns) * 1e-9;
}

void Event::make_wait(Stream& stream) const {
  Place place = this->place();
  if (place.captured != nullptr) return Capture::wait(stream, *place.captured);
  if (place.progress == nullptr) return;
  if (stream.capture() != nullptr) {
    fail("a captured stream cannot wait for an event that was recorded outside of the capture");
  }
  if (place.progress == stream.progress()) return;  // in order anyway
  stream.submit(WaitFor{std::move(place.progress), place.position});
}

Event::Place Event::place() const {
  const std::lock_guard lock(mutex_);
  return place_;
}

}  // namespace nvllm::cpu
