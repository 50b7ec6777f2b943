// Task: a callable stored in place. Streams queue tasks; graphs keep them and run them many times.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace nvllm::cpu {

// Not copyable or movable: it is constructed in its final location. Callables of up to kInlineBytes
// need no allocation.
class Task {
 public:
  static constexpr std::size_t kInlineBytes = 112;

  template <typename Function>
  requires(!std::is_same_v<std::decay_t<Function>, Task>) explicit Task(Function&& function) {
    using Stored = std::decay_t<Function>;
    if constexpr (sizeof(Stored) <= kInlineBytes && alignof(Stored) <= kAlignment) {
      ::new (static_cast<void*>(storage_)) Stored(std::forward<Function>(function));
      operations_ = &kOperations<Stored>;
    } else {
      auto boxed = [stored = std::make_unique<Stored>(std::forward<Function>(function))] {
        (*stored)();
      };
      ::new (static_cast<void*>(storage_)) decltype(boxed)(std::move(boxed));
      operations_ = &kOperations<decltype(boxed)>;
    }
  }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  ~Task() { operations_->destroy(storage_); }

  void operator()() { operations_->run(storage_); }

 private:
  static constexpr std::size_t kAlignment = 16;

  struct Operations {
    void (*run)(void*);
    void (*destroy)(void*);
  };

  template <typename Stored>
  static constexpr Operations kOperations = {
      [](void* stored) { (*static_cast<Stored*>(stored))(); },
      [](void* stored) { static_cast<Stored*>(stored)->~Stored(); }};

  const Operations* operations_;
  alignas(kAlignment) std::byte storage_[kInlineBytes];
};

static_assert(sizeof(Task) == 128, "a task fills two cache lines");

}  // namespace nvllm::cpu
