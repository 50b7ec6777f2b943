// ThreadPool: a process's threads that share the work of CPU kernels.
//
//   cpu::stream(stream).submit([=, &pool] {
//     pool.run(rows, [&](std::int64_t begin, std::int64_t end) { ... rows [begin, end) ... });
//   });
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

#include "base/clock.h"

namespace nvllm::cpu {

// A pool has one thread per core that the process may run on, including the caller's; the threads
// start at the first call that has work for them (so after the process has set its affinity).
// Between jobs they spin briefly, then sleep. Calls from several threads at once are allowed: a
// caller that finds the pool busy does its work alone.
class ThreadPool {
 public:
  // Longer than the gap between two kernels of a step, shorter than waking a thread twice.
  static constexpr Nanoseconds kSpin = std::chrono::microseconds(50);

  // threads: 0: one per core. spin: how long threads wait for more work before they sleep.
  explicit ThreadPool(int threads = 0, Nanoseconds spin = kSpin);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;  // including the caller's

  // Calls part(begin, end) for ranges that partition [0, count), each beginning at a multiple of
  // `grain` and, if possible, at least that long; returns when all have run. The assignment of
  // ranges to threads is not fixed: a thread that finishes early takes over what others have not
  // started. An exception of one of them is rethrown here; ranges that had not started by then are
  // skipped. Allocates nothing, except for the threads at the first call.
  template <typename Part>
  void run(std::int64_t count, std::int64_t grain, Part&& part) {
    using Callable = std::remove_reference_t<Part>;
    run(count, grain,
        Call{[](const void* callable, std::int64_t begin, std::int64_t end) {
               (*static_cast<Callable*>(const_cast<void*>(callable)))(begin, end);
             },
             static_cast<const void*>(&part)});
  }
  template <typename Part>
  void run(std::int64_t count, Part&& part) {
    run(count, 1, part);
  }

 private:
  // A non-owning callable.
  struct Call {
    void (*function)(const void* callable, std::int64_t begin, std::int64_t end);
    const void* callable;
    void operator()(std::int64_t begin, std::int64_t end) const { function(callable, begin, end); }
  };
  class Impl;

  void run(std::int64_t count, std::int64_t grain, Call call);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace nvllm::cpu
