#pragma once

#include <cuda_runtime_api.h>

#include <exception>
#include <mutex>
#include <string_view>
#include <utility>

namespace nvllm::cuda {

// What a function threw that CUDA called on a thread of its own, until somebody waits for the
// stream. Keeps the first. Thread-safe.
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

}  // namespace nvllm::cuda
