// Runs nvllm-launch generate with needle prompts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/needle/haystack.h"

namespace nvllm::needle {

struct Found {
  std::vector<std::int32_t> tokens;  // that came
  std::string kv_mode;               // from the output line
  std::int64_t cached_tokens = 0;    // of the prompt
  bool right = false;                // whether the tokens are exactly the answer
};

// Asks all questions in one run with the model in a folder, with more options of generate. An Error
// with the program's error text, if it failed.
std::vector<Found> ask(const std::string& folder, const std::vector<Question>& questions,
                       const std::vector<std::string>& options);

}  // namespace nvllm::needle
