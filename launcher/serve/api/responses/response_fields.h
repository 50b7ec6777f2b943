// The body of a request to /v1/responses in the format of OpenAI's Responses API, plus those
// sampling fields of vLLM that have no equivalent there. The server stores nothing: a client sends
// the whole conversation each time.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/serve/api/api_call.h"
#include "launcher/serve/api/conversation.h"
#include "launcher/serve/api/generation_fields.h"

namespace nvllm::launcher {

struct ResponseFields : GenerationFields {
  bool has_input = false;
  bool has_tools = false;
  std::string tool_choice = "auto";
  bool parallel_tool_calls = true;
  std::string reasoning_effort = "";
  // Request values repeated in the response, as JSON.
  std::string instructions = "null", tools = "[]", metadata = "{}", user = "null";
};

// Both throw an ApiError for invalid bodies.
ResponseFields read_response_fields(const ApiContext& context, std::string_view body);
ChatPrompt response_prompt_of(const ApiContext& context, const ResponseFields& fields,
                              std::string_view body);

}  // namespace nvllm::launcher
