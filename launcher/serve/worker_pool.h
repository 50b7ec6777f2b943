// WorkerPool: threads that parse bodies and write complete responses, so that neither sockets nor
// the engine wait for them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/thread.h"

namespace nvllm::launcher {

// Thread-safe.
class WorkerPool {
 public:
  explicit WorkerPool(std::size_t threads) {
    for (std::size_t i = 0; i < threads; ++i) {
      threads_.push_back(start_thread("of the server's pool", [this] { run_tasks(); }));
    }
  }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;
  // Waits for running tasks; drops those that have not started.
  ~WorkerPool() {
    stop(Nanoseconds(0));
    for (std::thread& thread : threads_) thread.join();
  }

  // The task must not throw.
  void run(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }
  // No further task starts. False: one is still running after the limit; the destructor would wait
  // for it.
  bool stop(Nanoseconds limit) {
    std::unique_lock lock(mutex_);
    ending_ = true;
    changed_.notify_all();
    return changed_.wait_for(lock, limit, [this] { return running_ == 0; });
  }

  // Waits until no task runs, and pauses the threads until resume(), so that a fork is safe. False:
  // one is still running after the limit.
  bool pause(Nanoseconds limit) {
    std::unique_lock lock(mutex_);
    paused_ = true;
    return changed_.wait_for(lock, limit, [this] { return running_ == 0; });
  }
  void resume() {
    {
      const std::lock_guard lock(mutex_);
      paused_ = false;
    }
    changed_.notify_all();
  }

 private:
  void run_tasks() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return ending_ || (!paused_ && !tasks_.empty()); });
      if (ending_) return;
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      ++running_;
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
      // pause() or stop() may wait for the last one.
      if (--running_ == 0 && (paused_ || ending_)) changed_.notify_all();
    }
  }

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::size_t running_ = 0;
  bool paused_ = false, ending_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace nvllm::launcher
