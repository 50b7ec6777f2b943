// Shared by benchmarks of messages between processes: children on cores of their own, and the
// latency of a message until the last of them has read it.
#pragma once

#include <benchmark/benchmark.h>
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/clock.h"
#include "ipc/group.h"
#include "ipc/ring.h"

namespace nvllm::ipc {

inline constexpr Nanoseconds kForEver = std::chrono::hours(1);

// Pins the calling process to core number `index`, if there is a core for each of `count`
// processes.
void pin(std::size_t index, std::size_t count);

// Restores the CPU affinity of this process at the end.
class Affinity {
 public:
  Affinity() { sched_getaffinity(0, sizeof(before_), &before_); }
  ~Affinity() { sched_setaffinity(0, sizeof(before_), &before_); }
  Affinity(const Affinity&) = delete;
  Affinity& operator=(const Affinity&) = delete;

 private:
  cpu_set_t before_;
};

// Child processes; killed and reaped at the end.
class Children {
 public:
  Children() = default;
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;
  ~Children();
  void start(const std::function<void()>& body);
  // Processor time that all of them have used.
  Nanoseconds cpu_time() const;

 private:
  std::vector<pid_t> pids_;
};

// What a reader publishes after it has read a whole message.
struct alignas(64) Stamp {
  std::atomic<std::uint64_t> messages;
  std::atomic<std::int64_t> time_ns;

  void publish() {
    time_ns.store(now_ns(), std::memory_order_relaxed);
    messages.fetch_add(1, std::memory_order_release);
  }
};
std::vector<Stamp*> stamps_in(const Member& member, int readers);

// Reads every byte.
void read_all(Bytes message);

// Reports counters p50_us and p99_us.
class Latencies {
 public:
  void add(std::int64_t ns) { samples_.push_back(ns); }
  void report(benchmark::State& state);

 private:
  double at(double quantile) const;
  std::vector<std::int64_t> samples_;
};

// Sends one message per iteration and measures until the last reader's stamp. `pause` before each
// lets the readers fall asleep.
void measure(benchmark::State& state, const std::vector<Stamp*>& stamps, Nanoseconds pause,
             const std::function<void()>& send);

// The calling process is rank 0 and sends on the calls ring; ranks from 1 on read it.
void measure_calls(benchmark::State& state, int readers, Nanoseconds spin, Nanoseconds pause,
                   const std::function<void(RingWriter&)>& send);

}  // namespace nvllm::ipc
