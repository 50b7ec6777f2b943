// Lines of the processor's caches on their way between cores. Hints: results never depend on them.
#pragma once

#include <cstddef>

namespace nvllm {

inline constexpr std::size_t kCacheLine = 64;

// Moves the line from this core's cache to the shared one, from where other cores get it sooner. Does
// nothing where the processor does not know it.
inline void hand_over_line([[maybe_unused]] const std::byte* line) {
#if defined(__x86_64__)
  asm volatile("cldemote %0" : : "m"(*line));
#endif
}

// Takes the line into this core's cache, and out of the others', before it is written.
inline void take_over_line([[maybe_unused]] std::byte* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*line));
#endif
}

}  // namespace nvllm
