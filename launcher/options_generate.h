// What is asked of `generate` alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nvllm::launcher {

struct GenerateOptions {
  std::vector<std::vector<std::int32_t>> prompts;  // --prompt-ids
  std::vector<std::string> texts;                  // --prompt
  std::vector<std::string> stop;                   // --stop
  bool stream = false;
  std::string input;   // a file, "-", or empty
  std::string output;  // a file; empty: standard output
  bool resume = false;
  bool generation_config = true;  // defaults come from generation_config.json
};

}  // namespace nvllm::launcher
