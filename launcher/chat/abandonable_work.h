// AbandonableWork: work on a text that may take seconds (a chat template's rendering, tokenizing),
// in a thread of its own, so that whoever waits for it can stop waiting.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>

namespace nvllm::launcher {

// Used by one thread.
class AbandonableWork {
 public:
  // The work's result, or what it throws. Nothing if `stop`, which is asked many times a second,
  // says so: then the work goes on alone, and its result is dropped. It must own what it uses, but
  // for what lives until busy() is false, or the process ends.
  template <typename Work, typename Result = std::invoke_result_t<Work>>
  std::optional<Result> run(Work work, const std::function<bool()>& stop) {
    auto task = std::make_shared<std::packaged_task<Result()>>(std::move(work));
    std::future<Result> result = task->get_future();
    const auto run_and_count = [task, threads = threads_]() mutable {
      (*task)();
      task.reset();  // what the work owns is gone before it counts as done
      --*threads;
    };
    ++*threads_;
    try {
      std::thread(run_and_count).detach();
    } catch (const std::system_error&) {  // no thread is to be had: it is waited for
      --*threads_;
      (*task)();
    }
    task.reset();
    while (result.wait_for(kInterval) != std::future_status::ready) {
      if (stop()) return std::nullopt;
    }
    return result.get();
  }

  // Whether work that was abandoned goes on.
  bool busy() const { return *threads_ > 0; }

 private:
  static constexpr auto kInterval = std::chrono::milliseconds(20);

  const std::shared_ptr<std::atomic<int>> threads_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace nvllm::launcher
