#include "launcher/serve/worker_pool.h"

#include <utility>

#include "base/thread.h"

namespace nvllm::launcher {

WorkerPool::WorkerPool(std::size_t threads) {
  for (std::size_t i = 0; i < threads; ++i) {
    threads_.push_back(start_thread("of the server's pool", [this] { work(); }));
  }
}

WorkerPool::~WorkerPool() {
  stop(Nanoseconds(0));
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::run(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
}

bool WorkerPool::stop(Nanoseconds limit) {
  std::unique_lock lock(mutex_);
  ending_ = true;
  changed_.notify_all();
  return changed_.wait_for(lock, limit, [this] { return running_ == 0; });
}

bool WorkerPool::pause(Nanoseconds limit) {
  std::unique_lock lock(mutex_);
  paused_ = true;
  return changed_.wait_for(lock, limit, [this] { return running_ == 0; });
}

void WorkerPool::resume() {
  {
    const std::lock_guard lock(mutex_);
    paused_ = false;
  }
  changed_.notify_all();
}

void WorkerPool::work() {
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

}  // namespace nvllm::launcher
