// LongMode: how keys and values are kept while `bench long` measures.
#pragma once

#include <cstdint>

namespace nvllm::launcher {

// chunked: in host memory alone; hybrid: likewise, but as far as there is room also on the device.
enum class LongMode : std::uint8_t { paged, contiguous, hybrid, chunked, layerwise };
constexpr const char* name_of(LongMode mode) {
  switch (mode) {
    case LongMode::paged: return "paged";
    case LongMode::contiguous: return "contiguous";
    case LongMode::hybrid: return "hybrid";
    case LongMode::chunked: return "chunked";
    case LongMode::layerwise: return "layerwise";
  }
  return "";
}

constexpr bool in_chunks(LongMode mode) {
  return mode == LongMode::chunked || mode == LongMode::hybrid;
}

}  // namespace nvllm::launcher
