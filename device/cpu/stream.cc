#include "device/cpu/stream.h"

#include <pthread.h>

#include <utility>

#include "base/error.h"
#include "base/thread.h"
#include "device/cpu/event.h"

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

Stream::Stream(const std::string& name, Nanoseconds spin, std::shared_ptr<Crew> crew)
    : crew_(std::move(crew)),
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

// When all work is done: throws the failure, if there was one, and makes the stream usable again.
void Stream::report_failure() {
  if (!progress_->failing()) return;
  std::exception_ptr error = progress_->recover(enqueued());
  enqueue([] {});  // an event that is recorded now lies behind the spoiled work
  std::rethrow_exception(std::move(error));
}

void Stream::require_no_capture(const char* call) const {
  if (capture_ != nullptr) fail(call, "() of a stream that is being captured; nothing runs there");
}

}  // namespace nvllm::cpu
