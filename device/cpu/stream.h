// The CPU backend's stream: a thread that runs its queue in order. CPU kernels enqueue with
// submit():
//
//   void scale(float* data, std::size_t count, float factor, nvllm::Stream& stream) {
//     cpu::stream(stream).submit([=] { for (...) data[i] *= factor; });
//   }
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/check.h"
#include "device/backend.h"
#include "device/cpu/counter.h"
#include "device/cpu/graph.h"
#include "device/cpu/task.h"
#include "device/cpu/thread_pool.h"

namespace nvllm::cpu {

// The number of completed tasks of a stream, and its last failure. Shared with events, so that
// these may outlive the stream.
class Progress {
 public:
  explicit Progress(Nanoseconds spin) : done(spin) {}

  Counter done;  // tasks that have run, or were skipped after a failure

  // Called when the task that makes `done` equal to `position` has thrown. Tasks after it are
  // skipped until recover().
  void fail(std::exception_ptr error, std::uint64_t position);
  bool failing() const { return failing_.load(std::memory_order_acquire); }
  // Throws the failure that affected the work up to `position`, if any.
  void rethrow(std::uint64_t position) const;
  // Ends the failed state, which affected all work up to `position`; returns the failure.
  std::exception_ptr recover(std::uint64_t position);

 private:
  std::atomic<bool> failing_{false};
  mutable std::mutex mutex_;
  // the last failure; affects positions from failed_at_ to spoiled_until_
  std::exception_ptr error_;
  std::uint64_t failed_at_ = 0;  // first affected position
  std::uint64_t spoiled_until_ = 0;
};

// Its thread starts with it and sleeps when idle. The destructor first runs all queued work.
//
// When a task throws, the tasks queued after it are skipped until synchronize() has thrown that
// error; then the stream is usable again. A stream that waits for an event after the failed task
// fails with the same error.
//
// The queue holds kCapacity tasks; then submit() waits for half of them.
class Stream final : public nvllm::Stream {
 public:
  static constexpr std::uint64_t kCapacity = 2048;

  // `name`: of the thread, at most 15 characters. `pool`: shared by its tasks; nullptr: none, for
  // streams without kernels.
  Stream(const std::string& name, Nanoseconds spin, std::shared_ptr<ThreadPool> pool = nullptr);
  ~Stream() override;

  // Enqueues a function, which may throw. During capture it is recorded instead, and then runs once
  // per launch of the graph.
  template <typename Function>
  void submit(Function&& function) {
    if (capture_ != nullptr) [[unlikely]] {
      capture_->add(branch_, std::forward<Function>(function));
    } else {
      enqueue(std::forward<Function>(function));
    }
  }

  DeviceKind kind() const override { return DeviceKind::cpu; }
  void wait(const nvllm::Event& event) override;
  void host_call(std::function<void()> function) override { submit(std::move(function)); }
  void synchronize() override;
  bool synchronize_for(Nanoseconds limit) override;
  bool idle() override;

  // The backend's thread pool, for kernels. Tasks may keep a reference: it outlives the stream, and
  // graphs run on streams of the same backend.
  ThreadPool& thread_pool() const {
    NVLLM_CHECK(pool_ != nullptr, "this stream has no pool");
    return *pool_;
  }

  // What an event records: this stream's progress and the number of tasks enqueued so far.
  const std::shared_ptr<Progress>& progress() const { return progress_; }
  std::uint64_t enqueued() const { return submitted_.value(); }

  // The capture that records this stream, and the stream's branch in it; nullptr: none.
  const std::shared_ptr<Capture>& capture() const { return capture_; }
  int branch() const { return branch_; }
  void set_capture(std::shared_ptr<Capture> capture, int branch);

 private:
  union Slot {
    Slot() {}
    ~Slot() {}
    Task task;
  };

  template <typename Function>
  void enqueue(Function&& function) {
    const std::uint64_t position = submitted_.value();
    if (position - progress_->done.value() >= kCapacity) [[unlikely]]
      progress_->done.wait(position - kCapacity / 2);
    ::new (static_cast<void*>(&ring_[position % kCapacity].task))
        Task(std::forward<Function>(function));
    submitted_.advance(position + 1);
  }

  void run();
  void report_failure();
  void require_no_capture(const char* call) const;

  // Only the thread that uses the stream reads and writes these two.
  std::shared_ptr<Capture> capture_;
  int branch_ = 0;

  const std::shared_ptr<ThreadPool> pool_;

  // Shared. A slot belongs to the user of the stream until submitted_ passes it, then to the
  // stream's thread until progress_->done passes it.
  const std::unique_ptr<Slot[]> ring_;
  Counter submitted_;
  const std::shared_ptr<Progress> progress_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;  // last: it uses all of the above
};

// The CPU backend's stream behind a Stream; any other aborts.
inline Stream& stream(nvllm::Stream& stream) {
  NVLLM_CHECK(stream.kind() == DeviceKind::cpu, "not a stream of the CPU backend");
  return static_cast<Stream&>(stream);
}

// An event is a position in the work of the stream that recorded it last: no task runs to reach it,
// and a wait that was enqueued before a new record keeps its position. Thread-safe.
class Event final : public nvllm::Event {
 public:
  explicit Event(bool timing) : timing_(timing) {}

  void record(nvllm::Stream& stream) override;
  bool reached() const override;
  // Throws the error of the preceding work, if it failed.
  void synchronize() const override;
  double seconds_since(const nvllm::Event& earlier) const override;

  // Implements Stream::wait: later work of the stream waits for this event; during capture, adds
  // the stream to the capture or an edge to the graph.
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
