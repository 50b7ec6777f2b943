// Runs a plan with many threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <vector>

#include "device/backend.h"
#include "model/checkpoint.h"
#include "model/load_plan.h"

namespace nvllm::model {

// One load; used by one thread, which starts the others. They take the pieces in order. The first thing
// that is thrown, in any of them or by `progress`, ends all of them and is thrown by run().
class ParallelLoad {
 public:
  // staging_bytes: of each of a thread's staging buffers; 0: device memory is written in place.
  ParallelLoad(const LoadPlan& plan, const Checkpoint& checkpoint, Backend& backend,
               std::size_t staging_bytes);

  // progress(bytes) is called by the caller's thread about ten times a second.
  void run(int threads, const std::function<void(std::uint64_t)>& progress);

  std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  void watch(const std::function<void(std::uint64_t)>& progress);
  void work() noexcept;
  void load_pieces();
  void stop(std::exception_ptr error);

  const LoadPlan& plan_;
  const Checkpoint& checkpoint_;
  Backend& backend_;
  const std::size_t staging_bytes_;

  std::atomic<std::size_t> next_{0};  // piece
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> bytes_loaded_{0};
  std::atomic<std::uint64_t> bytes_read_{0};

  std::mutex mutex_;
  std::condition_variable ended_;
  int running_ = 0;           // guarded by mutex_
  std::exception_ptr error_;  // guarded by mutex_; the first
};

}  // namespace nvllm::model
