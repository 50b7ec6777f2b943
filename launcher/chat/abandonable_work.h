// AbandonableWork: runs work on text that may take seconds (rendering a chat template, tokenizing)
// in a separate thread, so that the caller can stop waiting for it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>

namespace nvllm::launcher {

// Used by one thread.
class AbandonableWork {
 public:
  // Returns the work's result, or throws its exception. Returns nullopt if `stop`, which is called
  // many times a second, returns true: then the work continues alone, and its result is dropped. It
  // must own everything it uses, except what lives until busy() is false, or the process ends.
  template <typename Work, typename Result = std::invoke_result_t<Work>>
  std::optional<Result> run(Work work, const std::function<bool()>& stop) {
    auto task = std::make_shared<Task<Work, Result>>(std::move(work));
    ++*threads_;
    try {
      std::thread([task, threads = threads_]() mutable {
        task->run();
        task.reset();
        --*threads;
      }).detach();
    } catch (const std::system_error&) {  // no thread can be started: run it here
      --*threads_;
      task->run();
    }
    while (!task->wait(kInterval)) {
      if (stop()) return std::nullopt;
    }
    return task->take();
  }

  // Whether abandoned work is still running.
  bool busy() const { return *threads_ > 0; }

 private:
  static constexpr auto kInterval = std::chrono::milliseconds(20);

  // Shared by the working and the waiting thread. What the work owns is destroyed before it is
  // over, and its result or exception belongs to one thread at a time: ThreadSanitizer does not see
  // how the standard library counts the owners of an exception.
  template <typename Work, typename Result>
  class Task {
   public:
    explicit Task(Work work) : work_(std::move(work)) {}

    void run() {
      std::optional<Result> result;
      std::exception_ptr error;
      try {
        result.emplace((*work_)());
      } catch (...) {
        error = std::current_exception();
      }
      work_.reset();
      const std::lock_guard lock(mutex_);
      result_ = std::move(result);
      error_ = std::move(error);
      over_ = true;
      changed_.notify_all();
    }

    // Waits for at most `interval`; returns whether the work is over.
    bool wait(std::chrono::milliseconds interval) {
      std::unique_lock lock(mutex_);
      return changed_.wait_for(lock, interval, [this] { return over_; });
    }

    // Call once, when the work is over.
    Result take() {
      const std::lock_guard lock(mutex_);
      if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
      return *std::move(result_);
    }

   private:
    std::optional<Work> work_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool over_ = false;  // guarded by mutex_, as are the members below
    std::optional<Result> result_;
    std::exception_ptr error_;
  };

  const std::shared_ptr<std::atomic<int>> threads_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace nvllm::launcher
