// Shared by the cases of the cache modes: requests with given prompt lengths, options, and the
// comparison with the answers of a paged cache.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/engine/testing/test_engine.h"

namespace nvllm::runtime {

inline constexpr std::int64_t kMaxLen = 64;  // four blocks
inline constexpr std::int64_t kChunk = 24;   // rows of a step, or of a layer-wise part

// Requests with prompts of these lengths that generate up to the maximum length.
std::vector<Request> requests_of(const OpenModel& model, const std::vector<std::int64_t>& lengths);

// The answers of a new engine.
Answers run(const OpenModel& model, int ranks, const EngineOptions& options,
            const std::vector<Request>& requests);

// Blocks on the device; these answers are the reference.
EngineOptions paged();
// Blocks on the host; a step takes `chunk` tokens.
EngineOptions layerwise(std::int64_t buffers, std::int64_t chunk);

// Describes the first wrong answer; empty: none.
std::string compare(const Answers& got, const Answers& right);

}  // namespace nvllm::runtime
