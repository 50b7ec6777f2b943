// What is asked of `generate` alone.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/request.h"

namespace nvllm::launcher {

// Sampling options as they were given, in their order: each sets one field.
using SamplingSettings = std::vector<std::function<void(runtime::SamplingParams&)>>;

struct GenerateOptions {
  std::vector<std::vector<std::int32_t>> prompts;  // --prompt-ids
  std::string input;                               // a file, "-", or empty
  std::string output;                              // a file; empty: standard output
  bool resume = false;
  bool generation_config = true;  // defaults come from generation_config.json
  SamplingSettings sampling;      // defaults of all requests
};

}  // namespace nvllm::launcher
