#pragma once

#include <functional>
#include <vector>

#include "runtime/request.h"

namespace nvllm::launcher {

// Sampling options as they were given, in their order: each sets one field.
using SamplingSettings = std::vector<std::function<void(runtime::SamplingParams&)>>;

inline void apply_sampling(const SamplingSettings& settings, runtime::SamplingParams& params) {
  for (const auto& set : settings) set(params);
}

}  // namespace nvllm::launcher
