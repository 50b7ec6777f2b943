// One line of the input of `generate`: a JSON object with a prompt, and any field of SamplingParams under
// its name in vLLM.
//   {"id": "a", "prompt_token_ids": [1, 2, 3], "max_tokens": 8, "logit_bias": {"7": -100}}
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/request.h"

namespace nvllm::launcher {

// Either a request, or why there is none.
struct RequestLine {
  std::string id;  // as JSON: "\"a\"", "7"; empty: it has none
  std::optional<runtime::Request> request = std::nullopt;
  std::string error = "";
};

// defaults: of the fields that the line does not have. Never throws an Error: whatever is wrong with the
// line is its error, in one line.
RequestLine parse_request_line(std::string_view line, const runtime::SamplingParams& defaults);

}  // namespace nvllm::launcher
