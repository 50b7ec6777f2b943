// StdinWatch: a thread that reads and discards standard input until it is closed
// (--exit-when-stdin-closes).
#pragma once

#include <functional>
#include <thread>

#include "base/unique_fd.h"

namespace nvllm::launcher {

// It holds no lock while it waits, so that the process may fork. Signals must be blocked when it is
// created, so that they reach the threads that handle them.
class StdinWatch {
 public:
  // on_closed: called once, by the thread.
  explicit StdinWatch(std::function<void()> on_closed);
  StdinWatch(const StdinWatch&) = delete;
  StdinWatch& operator=(const StdinWatch&) = delete;
  ~StdinWatch();  // ends the thread

 private:
  void run() const;

  const UniqueFd stop_;
  const std::function<void()> on_closed_;
  std::thread thread_;
};

}  // namespace nvllm::launcher
