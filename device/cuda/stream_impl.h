// Streams, events and graphs of the CUDA backend. Each object owns one of the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "device/backend.h"

namespace nvllm::cuda {

// ErrorSlot stores the first exception of a host function that CUDA called on its own thread, until
// the stream is waited for. Thread-safe.
class ErrorSlot {
 public:
  void put(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (error_ == nullptr) error_ = std::move(error);
  }
  void rethrow() {
    std::exception_ptr error;
    {
      const std::lock_guard lock(mutex_);
      error = std::exchange(error_, nullptr);
    }
    if (error) std::rethrow_exception(std::move(error));
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

// A host function that CUDA calls, and the slot for its exception.
struct HostCall {
  std::function<void()> function;
  std::shared_ptr<ErrorSlot> errors;
};

// The host calls of a graph. CUDA's graph owns them: a launch may still need them after Graph has
// been destroyed.
struct GraphCalls {
  std::vector<std::unique_ptr<HostCall>> calls;
  std::shared_ptr<ErrorSlot> errors = std::make_shared<ErrorSlot>();
};

// The captures in progress; each belongs to the thread that runs it
// (cudaStreamCaptureModeThreadLocal). Thread-safe.
class Captures {
 public:
  void begin(GraphCalls* calls);
  void end();
  GraphCalls* of_this_thread();  // nullptr: none

 private:
  std::mutex mutex_;
  std::map<std::thread::id, GraphCalls*> captures_;
};

class Stream final : public nvllm::Stream {
 public:
  Stream(StreamPriority priority, Captures& captures);
  ~Stream() override;

  DeviceKind kind() const override { return DeviceKind::cuda; }
  void wait(const nvllm::Event& event) override;
  // An Error that the function throws surfaces at synchronize(); unlike on the CPU, later work
  // still runs.
  void host_call(std::function<void()> function) override;
  void synchronize() override;
  bool synchronize_for(Nanoseconds limit) override;
  bool idle() override;

  cudaStream_t native() const { return stream_; }
  // Called when a graph is launched whose host calls report to this slot.
  void adopt(const std::shared_ptr<ErrorSlot>& errors);

 private:
  void rethrow();

  Captures& captures_;
  cudaStream_t stream_ = nullptr;
  const std::shared_ptr<ErrorSlot> errors_ = std::make_shared<ErrorSlot>();
  std::vector<std::shared_ptr<ErrorSlot>> adopted_;  // since the last synchronize()
};

class Event final : public nvllm::Event {
 public:
  explicit Event(bool timing);
  ~Event() override;

  void record(nvllm::Stream& stream) override;
  bool reached() const override;
  void synchronize() const override;
  double seconds_since(const nvllm::Event& earlier) const override;

  cudaEvent_t native() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class Graph final : public nvllm::Graph {
 public:
  // Records what `work` enqueues on the stream.
  Graph(nvllm::Stream& stream, const std::function<void()>& work, Captures& captures);
  ~Graph() override;

  void launch(nvllm::Stream& stream) override;

 private:
  std::shared_ptr<ErrorSlot> errors_;  // of its host calls; nullptr: it has none
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace nvllm::cuda
