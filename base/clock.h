// Monotonic time, and deadlines.
#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>

namespace nvllm {

using Nanoseconds = std::chrono::nanoseconds;

// Nanoseconds of CLOCK_MONOTONIC: the same clock in every process of the machine.
inline std::int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
}

inline double seconds_since(std::int64_t start_ns) {
  return static_cast<double>(now_ns() - start_ns) * 1e-9;
}

// Tells the processor that this is a spinning loop.
inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace nvllm
