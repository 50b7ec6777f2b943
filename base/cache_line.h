// Hints that move cache lines between cores. They never affect results.
#pragma once

#include <cstddef>

namespace nvllm {

inline constexpr std::size_t kCacheLine = 64;

// Moves the line from this core's cache to the shared one, from which other cores read it faster
// (CLDEMOTE). Processors without the instruction ignore it.
inline void demote_cache_line([[maybe_unused]] const std::byte* line) {
#if defined(__x86_64__)
  asm volatile("cldemote %0" : : "m"(*line));
#endif
}

// Fetches the line into this core's cache, and invalidates it in others, before it is written
// (PREFETCHW).
inline void prefetch_cache_line_for_write([[maybe_unused]] std::byte* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*line));
#endif
}

}  // namespace nvllm
