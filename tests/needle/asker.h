// Asks nvllm-launch generate for needles.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/needle/haystack.h"

namespace nvllm::needle {

struct Found {
  std::vector<std::int32_t> tokens;  // that came
  std::string kv_mode;               // as the answer's line says it
  std::int64_t cached_tokens = 0;    // of the prompt
  bool right = false;                // the answer, and nothing else
};

// All questions to one run of a model in a folder, with more of generate's options. An Error with
// what the program said, if it failed.
std::vector<Found> ask(const std::string& folder, const std::vector<Question>& questions,
                       const std::vector<std::string>& options);

}  // namespace nvllm::needle
