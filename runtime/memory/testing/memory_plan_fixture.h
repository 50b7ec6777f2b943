// Machines to plan memory for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/memory/memory_plan.h"
#include "testing/error_of.h"

namespace nvllm::runtime {

inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20, kGiB = std::uint64_t{1} << 30;
inline constexpr std::int64_t kModelLimit = 40960;

// An H200 with 16 GiB of our buffers, and 1 GiB that CUDA took.
inline RankMemory gpu() {
  return {.total = 140 * kGiB,
          .available = 123 * kGiB,
          .taken = 16 * kGiB,
          .graphs = 1 * kGiB,
          .block = 1 * kMiB,
          .host_available = 100 * kGiB};
}

inline RankMemory cpu() {
  return {.total = 64 * kGiB,
          .available = 40 * kGiB,
          .taken = 2 * kGiB,
          .graphs = 0,
          .block = 1 * kMiB,
          .host_available = 40 * kGiB};
}

inline MemoryPlan plan(const EngineOptions& options, DeviceKind device,
                       const std::vector<RankMemory>& ranks) {
  return plan_memory(options, kModelLimit, device, ranks);
}

inline std::string refusal(const EngineOptions& options, DeviceKind device,
                           const std::vector<RankMemory>& ranks) {
  return testing::error_of([&] { plan(options, device, ranks); });
}

}  // namespace nvllm::runtime
