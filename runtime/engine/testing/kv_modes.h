// What the cases of the cache's modes share: requests at given lengths, options, and the comparison
// with the answers of a paged cache.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/engine/testing/test_engine.h"

namespace nvllm::runtime {

inline constexpr std::int64_t kMaxLen = 64;  // four blocks
inline constexpr std::int64_t kChunk = 24;   // rows of a step, or of a part of one

// Answers that take all the room there is after prompts of these lengths.
std::vector<Request> requests_of(const OpenModel& model, const std::vector<std::int64_t>& lengths);

// The answers of an engine of its own.
Answers run(const OpenModel& model, int ranks, const EngineOptions& options,
            const std::vector<Request>& requests);

// Blocks on the device, as the right answers have them.
EngineOptions paged();
// Blocks on the host, and room for `chunk` tokens in a step.
EngineOptions layerwise(std::int64_t buffers, std::int64_t chunk);

// What is wrong with the first bad answer; empty: nothing.
std::string compare(const Answers& got, const Answers& right);

}  // namespace nvllm::runtime
