#include "device/cpu/stream.h"

#include <pthread.h>

#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"

namespace nvllm::cpu {

void Progress::fail(std::exception_ptr error, std::uint64_t position) {
  const std::lock_guard lock(mutex_);
  error_ = std::move(error);
  failed_at_ = position;
  spoiled_until_ = std::numeric_limits<std::uint64_t>::max();
  failing_.store(true, std::memory_order_release);
}

void Progress::rethrow(std::uint64_t position) const {
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    if (failed_at_ <= position && position <= spoiled_until_) error = error_;
  }
  if (error) std::rethrow_exception(std::move(error));
}

std::exception_ptr Progress::recover(std::uint64_t position) {
  const std::lock_guard lock(mutex_);
  spoiled_until_ = position;
  failing_.store(false, std::memory_order_release);
  return error_;
}

Stream::Stream(const std::string& name, Nanoseconds spin, std::shared_ptr<ThreadPool> pool)
    : pool_(std::move(pool)),
      ring_(new Slot[kCapacity]),
      submitted_(spin),
      progress_(std::make_shared<Progress>(spin)),
      thread_(start_thread("of a stream", [this] { run(); })) {
  pthread_setname_np(thread_.native_handle(), name.c_str());
}

Stream::~Stream() {
  NVLLM_CHECK(capture_ == nullptr, "a stream is destroyed while it is captured");
  stopping_.store(true);
  enqueue([] {});
  thread_.join();
}

void Stream::run() {
  std::uint64_t taken = 0;
  while (!(stopping_.load() && taken == submitted_.value())) {
    submitted_.wait(taken + 1);
    Task& task = ring_[taken % kCapacity].task;
    if (!progress_->failing()) {
      try {
        task();
      } catch (...) {
        progress_->fail(std::current_exception(), taken + 1);
      }
    }
    task.~Task();
    progress_->done.advance(++taken);
  }
}

void Stream::wait(const nvllm::Event& event) {
  cpu::event(event).make_wait(*this);
}

void Stream::synchronize() {
  require_no_capture("synchronize");
  progress_->done.wait(enqueued());
  report_failure();
}

bool Stream::synchronize_for(Nanoseconds limit) {
  require_no_capture("synchronize_for");
  if (!progress_->done.wait(enqueued(), now_ns() + limit.count())) return false;
  report_failure();
  return true;
}

bool Stream::idle() {
  require_no_capture("idle");
  return progress_->done.value() >= enqueued();
}

void Stream::set_capture(std::shared_ptr<Capture> capture, int branch) {
  capture_ = std::move(capture);
  branch_ = branch;
}

// After all work has run: throws the failure, if any, and makes the stream usable again.
void Stream::report_failure() {
  if (!progress_->failing()) return;
  std::exception_ptr error = progress_->recover(enqueued());
  enqueue([] {});  // events recorded from now on come after the failed work
  std::rethrow_exception(std::move(error));
}

void Stream::require_no_capture(const char* call) const {
  if (capture_ != nullptr) fail(call, "() of a stream that is being captured; nothing runs there");
}

namespace {

// The task with which a stream waits for another one.
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
