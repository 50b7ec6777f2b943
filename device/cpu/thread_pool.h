// ThreadPool: the threads of one process that share the work of a CPU kernel.
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

// A pool has one thread per core that the process may run on, the caller's included, when it first
// has work for them (so after the process has chosen its cores). Between pieces of work they spin
// for a moment, then sleep. Calls from several threads at once are fine: a caller that finds the
// pool busy does its work alone.
class ThreadPool {
 public:
  // Longer than the gap between two kernels of a step, shorter than waking a thread twice.
  static constexpr Nanoseconds kSpin = std::chrono::microseconds(50);

  // threads: 0: as many as there are cores. spin: how long they wait for more work before they
  // sleep.
  explicit ThreadPool(int threads = 0, Nanoseconds spin = kSpin);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;  // threads, the caller's included

  // Calls part(begin, end) for ranges that make up [0, count), each beginning at a multiple of
  // `grain` and, where there is as much, not shorter than it; returns when all have run. Who runs
  // what is not fixed: a thread that is done early, or has nobody's word that another one is awake,
  // takes over what others have not started. What one of them throws is thrown here; ranges that
  // had not started then are left out. Allocates nothing, but for the threads at first.
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
  // A callable that somebody else owns.
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
