// WorkerPool: threads that parse bodies and write complete responses, so that neither sockets nor
// the engine wait for them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace nvllm::launcher {

// Thread-safe.
class WorkerPool {
 public:
  explicit WorkerPool(std::size_t threads);
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;
  ~WorkerPool();  // waits for running tasks; drops those that have not started

  // The task must not throw.
  void run(std::function<void()> task);
  // No further task starts. False: one is still running after the limit; the destructor would wait
  // for it.
  bool stop(Nanoseconds limit);

  // Waits until no task runs, and pauses the threads until resume(), so that a fork is safe. False:
  // one is still running after the limit.
  bool pause(Nanoseconds limit);
  void resume();

 private:
  void work();

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::size_t running_ = 0;
  bool paused_ = false, ending_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace nvllm::launcher
